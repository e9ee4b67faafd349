//! IAM: the roles of machines and Pods, and the OIDC provider that authenticates Pods.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    context::{Context, text_at},
    graph::Model,
    names,
    policy::{self, Statement},
    statements,
};
use crate::{
    aws::{
        InstanceProfile, OidcProvider, Ref, Role, RolePolicy, RolePolicyAttachment, SshKey, Tags,
    },
    error::Error,
    names::fnv,
};

/// The fingerprints of the two authorities that issue S3's certificates.
const THUMBPRINTS: [&str; 2] =
    ["9e99a48a9960b14926bb7f3b02e22da2b0ab7280", "a9d53002e97e00e043244f3d170d6f4c414104fd"];
const AUDIENCE: &str = "amazonaws.com";

pub(super) fn add(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    let mut profiles: BTreeMap<String, &str> = BTreeMap::new();
    let mut managed: Vec<&str> = Vec::new();
    for group in context.groups {
        let role = group.spec.text("role");
        match text_at(&group.spec, "iam.profile") {
            None => managed.push(role),
            Some(profile) => {
                if *profiles.entry(profile.clone()).or_insert(role) != role {
                    let reason = "is the instance profile of groups of two roles";
                    return Err(Error::value("spec.iam.profile", profile, reason));
                }
            }
        }
    }
    for profile in profiles.keys() {
        let name = names::last_part(profile);
        model.add_existing(name, name, InstanceProfile { role: None });
    }
    managed.sort_unstable();
    managed.dedup();
    for role in managed {
        add_role(context, model, role)?;
    }
    add_pods(context, model)?;
    add_ssh_key(context, model)?;
    add_oidc(context, model);
    Ok(())
}

/// Returns the name of a role in outputs, in policies' names and in the spec's policies.
fn key(role: &str) -> &'static str {
    match role {
        "ControlPlane" => "master",
        "APIServer" => "apiserver",
        "Bastion" => "bastion",
        _ => "node",
    }
}

fn add_role(context: &Context<'_>, model: &mut Model, role: &str) -> Result<(), Error> {
    let name = names::iam(context.name, role);
    let key = key(role);
    let hooked = context.groups.iter().filter(|group| group.spec.text("role") == role);
    let hooked = hooked.filter_map(|group| context.warm_pool(group));
    let hooked = hooked.into_iter().any(|pool| pool.flag("enableLifecycleHook"));
    let tags = context.tags(&name, false);
    let trust_policy = policy::machine_trust_policy(&context.region);
    let to = put_role(context, model, &name, tags.clone(), trust_policy, format!("{key}s"));
    let document = statements::of_role(context, role, hooked)?;
    add_policy(model, &name, &to, document);
    model.add(name.clone(), tags, InstanceProfile { role: Some(to.clone()) });
    let known = if key == "master" { "control-plane" } else { key };
    let mut external: Vec<&str> =
        context.spec.texts(&format!("externalPolicies.{known}")).collect();
    external.sort_unstable();
    attach(model, &format!("{key}-policyoverride"), &to, &external);
    let field = format!("additionalPolicies.{known}");
    let additional = context.spec.text(&field);
    if !additional.is_empty() {
        let document = policy::user_document(&format!("spec.{field}"), additional)?;
        add_policy(model, &format!("additional.{name}"), &to, document);
    }
    Ok(())
}

fn put_role(
    context: &Context<'_>,
    model: &mut Model,
    name: &str,
    tags: Tags,
    trust_policy: String,
    output: String,
) -> Ref {
    let boundary = text_at(context.spec, "iam.permissionsBoundary");
    model.add(name, tags, Role { trust_policy, boundary, output })
}

fn add_policy(model: &mut Model, name: &str, role: &Ref, document: String) {
    model.add(name, Tags::new(), RolePolicy { role: role.clone(), document });
}

/// Attaches existing policies.
fn attach(model: &mut Model, name: &str, role: &Ref, policies: &[&str]) {
    for policy in policies {
        let name = format!("{name}-{}", fnv(policy));
        let body = RolePolicyAttachment { role: role.clone(), policy: (*policy).to_owned() };
        model.add(name, Tags::new(), body);
    }
}

/// Adds the roles of service accounts: those of add-ons, and those in the spec.
fn add_pods(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    if context.spec.text("kubeAPIServer.serviceAccountIssuer").is_empty() {
        return Ok(());
    }
    for (name, document) in statements::of_pods(context)? {
        let role = add_account(context, model, "kube-system", name)?;
        add_policy(model, &role.name.clone(), &role, document);
    }
    for account in context.spec.items("iam.serviceAccountExternalPermissions") {
        let (namespace, name) = (account.text("namespace"), account.text("name"));
        let role = add_account(context, model, namespace, name)?;
        let inline = account.text("aws.inlinePolicy");
        if !inline.is_empty() {
            let field = "spec.iam.serviceAccountExternalPermissions[].aws.inlinePolicy";
            let document = policy::user_document(field, inline)?;
            add_policy(model, &role.name.clone(), &role, document);
        }
        let arns: Vec<&str> = account.texts("aws.policyARNs").collect();
        attach(model, &format!("external-{}", role.name), &role, &arns);
    }
    Ok(())
}

fn add_account(
    context: &Context<'_>,
    model: &mut Model,
    namespace: &str,
    account: &str,
) -> Result<Ref, Error> {
    let field = "spec.iam.serviceAccountExternalPermissions[]";
    if account.contains('*') || account.is_empty() || namespace.is_empty() {
        let reason =
            "must name one service account, in one namespace or in a pattern of namespaces";
        return Err(Error::value(field, format!("{namespace}/{account}"), reason));
    }
    let issuer = context.spec.text("kubeAPIServer.serviceAccountIssuer");
    let issuer = issuer.trim_start_matches("https://");
    let equals = if namespace.contains('*') { "StringLike" } else { "StringEquals" };
    let subject = format!("system:serviceaccount:{namespace}:{account}");
    let provider = format!(
        "arn:{}:iam::{}:oidc-provider/{issuer}",
        context.partition,
        context.account("the trust policies of service accounts' roles need it")?
    );
    let statement = Statement {
        action: "sts:AssumeRoleWithWebIdentity".into(),
        condition: json!({equals: {format!("{issuer}:sub"): subject}}),
        principal: json!({"Federated": provider}),
        resource: Value::Null,
    };
    let name = names::service_account(context.name, namespace, account);
    let mut tags = context.tags(&name, false);
    let shown = namespace.replace('*', "wildcard");
    tags.insert("service-account.kops.k8s.io/name".to_owned(), account.to_owned());
    tags.insert("service-account.kops.k8s.io/namespace".to_owned(), shown.clone());
    let output = format!("{shown}-{account}").to_lowercase();
    let trust_policy = policy::document(&[statement]);
    Ok(put_role(context, model, &name, tags, trust_policy, output))
}

/// Adds the SSH key of the machines. A name in the spec refers to an existing key; an empty name means no key.
fn add_ssh_key(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    match context.spec.at("sshKeyName").as_str() {
        Some("") => {}
        Some(name) => {
            model.add_existing(name, name, SshKey { public: String::new() });
        }
        None => {
            if let Some(public) = context.inputs.ssh_keys.first() {
                let tags = context.tags(context.name, false);
                model.add(context.ssh_key_name(public)?, tags, SshKey { public: public.clone() });
            }
        }
    }
    Ok(())
}

fn add_oidc(context: &Context<'_>, model: &mut Model) {
    let discovery = context.spec.opt_at("serviceAccountIssuerDiscovery");
    let Some(discovery) = discovery.filter(|one| one.flag("enableAWSOIDCProvider")) else { return };
    let mut audiences = vec![AUDIENCE.to_owned()];
    audiences.extend(discovery.texts("additionalAudiences").map(str::to_owned));
    let body = OidcProvider {
        url: context.spec.text("kubeAPIServer.serviceAccountIssuer").to_owned(),
        audiences,
        thumbprints: THUMBPRINTS.map(str::to_owned).into(),
    };
    model.add(context.name, context.tags(context.name, false), body);
}
