//! IAM: roles with their policies, instance profiles and OIDC providers.

use std::collections::BTreeSet;

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    family::*,
    fields::{document, fields, is_owned, put_tags, sorted, tag_pairs, tags},
};

fn iam(operation: &'static str, parameters: Value) -> Call {
    Call::new("iam", operation, parameters)
}

/// Decodes a document from IAM, which escapes it for a URL.
fn decode_document(text: &str) -> String {
    // IAM does not escape spaces as plus signs.
    let decoded = api_meta::query_decode(&text.replace('+', "%2B"));
    document(&decoded.unwrap_or_else(|| text.to_owned()))
}

/// Returns the cluster's roles in the answers.
fn own_roles<'a>(scope: &Scope, answers: &'a Answers) -> impl Iterator<Item = &'a Value> {
    let roles = answers.each("GetAccountAuthorizationDetails", "RoleDetailList");
    roles.filter(|role| is_owned(&tags(role.items("Tags")), &scope.cluster))
}

/// Returns a part of a role, identified by the role and its own ID.
fn role_part(role: &Value, id: &str, fields: Fields) -> IdentifiedResource {
    let (id, context) = (id.to_owned(), role.text("RoleName").to_owned());
    let identity = format!("{context}/{id}");
    (identity, ExistingResource { id, fields, owned: true, context })
}

/// An IAM role.
#[derive(Clone, Debug)]
pub struct Role {
    /// The trust policy.
    pub trust_policy: String,
    /// The permissions boundary's ARN.
    pub boundary: Option<String>,
    /// The role's name in Terraform's outputs.
    pub output: String,
}

impl Operations for Role {
    fn queries(_scope: &Scope, _answers: &Answers) -> Vec<Call> {
        vec![iam("GetAccountAuthorizationDetails", json!({"Filter": ["Role"]}))]
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let found = own_roles(scope, answers).map(|role| {
            let name = role.text("RoleName").to_owned();
            let boundary = role.text("PermissionsBoundary.PermissionsBoundaryArn").to_owned();
            let assumed = decode_document(role.text("AssumeRolePolicyDocument"));
            let mut all = fields([("Assumed", assumed), ("Boundary", boundary)]);
            put_tags(&mut all, &tags(role.items("Tags")));
            let context = role.text("Arn").to_owned();
            let found = ExistingResource { id: name.clone(), fields: all, owned: true, context };
            (name, found)
        });
        found.collect()
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        vec![iam("DeleteRole", json!({"RoleName": found.id}))]
    }

    fn terraform_reference() -> &'static str {
        "name"
    }

    fn desired_fields(&self, _own: &Header<'_>, _ids: &Ids) -> Fields {
        let boundary = self.boundary.clone().unwrap_or_default();
        fields([("Assumed", document(&self.trust_policy)), ("Boundary", boundary)])
    }

    fn create(&self, own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        let mut request = json!({"RoleName": own.name, "AssumeRolePolicyDocument": self.trust_policy,
            "Tags": tag_pairs(own.tags)});
        request.set("PermissionsBoundary", self.boundary.as_deref());
        Ok(Creation::new(iam("CreateRole", request), IdSource::Name))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        let name = update.id();
        let mut calls = Vec::new();
        if update.has("Assumed") {
            let request = json!({"RoleName": name, "PolicyDocument": self.trust_policy});
            calls.push(iam("UpdateAssumeRolePolicy", request));
        }
        if update.has("Boundary") {
            calls.push(match &self.boundary {
                Some(arn) => {
                    let request = json!({"RoleName": name, "PermissionsBoundary": arn});
                    iam("PutRolePermissionsBoundary", request)
                }
                None => iam("DeleteRolePermissionsBoundary", json!({"RoleName": name})),
            });
        }
        Ok(calls)
    }

    fn set_tags(&self, id: &str, tags: &Tags) -> Call {
        iam("TagRole", json!({"RoleName": id, "Tags": tag_pairs(tags)}))
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        let policy = writer.text_file(own.kind, own.name, "policy", &self.trust_policy)?;
        block.value("assume_role_policy", policy).text("name", own.name).tags(own.tags);
        block.opt_value("permissions_boundary", self.boundary.as_ref().map(Expr::text));
        Ok(block)
    }
}

/// A policy of a role.
#[derive(Clone, Debug)]
pub struct RolePolicy {
    /// The role.
    pub role: Ref,
    /// The policy document.
    pub document: String,
}

impl Operations for RolePolicy {
    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let found = own_roles(scope, answers).flat_map(|role| {
            role.items("RolePolicyList").iter().map(move |policy| {
                let document = decode_document(policy.text("PolicyDocument"));
                role_part(role, policy.text("PolicyName"), fields([("Document", document)]))
            })
        });
        found.collect()
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        vec![iam("DeleteRolePolicy", json!({"RoleName": found.context, "PolicyName": found.id}))]
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.role]
    }

    fn identity(&self, own: &Header<'_>, _ids: &Ids) -> Option<String> {
        Some(format!("{}/{}", self.role.name, own.name))
    }

    fn desired_fields(&self, _own: &Header<'_>, _ids: &Ids) -> Fields {
        fields([("Document", document(&self.document))])
    }

    fn create(&self, own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        let request = json!({"RoleName": self.role.name, "PolicyName": own.name, "PolicyDocument": self.document});
        Ok(Creation::new(iam("PutRolePolicy", request), IdSource::Name))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        Ok(vec![self.create(&update.own, update.ids)?.call])
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        let policy = writer.text_file(own.kind, own.name, "policy", &self.document)?;
        block.text("name", own.name).value("policy", policy);
        block.value("role", writer.link(&self.role));
        Ok(block)
    }
}

/// The use of an existing policy by a role.
#[derive(Clone, Debug)]
pub struct RolePolicyAttachment {
    /// The role.
    pub role: Ref,
    /// The policy's ARN.
    pub policy: String,
}

impl Operations for RolePolicyAttachment {
    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let found = own_roles(scope, answers).flat_map(|role| {
            let policies = role.items("AttachedManagedPolicies").iter();
            policies.map(move |policy| role_part(role, policy.text("PolicyArn"), Fields::new()))
        });
        found.collect()
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        vec![iam("DetachRolePolicy", json!({"RoleName": found.context, "PolicyArn": found.id}))]
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.role]
    }

    fn identity(&self, _own: &Header<'_>, _ids: &Ids) -> Option<String> {
        Some(format!("{}/{}", self.role.name, self.policy))
    }

    fn create(&self, _own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        let request = json!({"RoleName": self.role.name, "PolicyArn": self.policy});
        Ok(Creation::new(iam("AttachRolePolicy", request), IdSource::Name))
    }

    fn terraform(&self, _own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text("policy_arn", &self.policy).value("role", writer.link(&self.role));
        Ok(block)
    }
}

/// An instance profile, by which machines assume a role.
#[derive(Clone, Debug)]
pub struct InstanceProfile {
    /// The role; `None` for an existing profile.
    pub role: Option<Ref>,
}

impl Operations for InstanceProfile {
    fn queries(_scope: &Scope, _answers: &Answers) -> Vec<Call> {
        vec![iam("ListInstanceProfiles", json!({}))]
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let own: BTreeSet<&str> =
            own_roles(scope, answers).map(|role| role.text("RoleName")).collect();
        let found = answers.each("ListInstanceProfiles", "InstanceProfiles").map(|profile| {
            let name = profile.text("InstanceProfileName").to_owned();
            let role = profile.items("Roles").first();
            let role = role.map(|role| role.text("RoleName")).unwrap_or_default();
            // An interrupted run may leave a profile without a role; it is identified by its name.
            let owned = own.contains(role) || (role.is_empty() && own.contains(name.as_str()));
            let fields = fields([("Role", role.to_owned())]);
            let context = role.to_owned();
            (name.clone(), ExistingResource { id: name, fields, owned, context })
        });
        found.collect()
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        let mut calls = Vec::new();
        if !found.context.is_empty() {
            let request = json!({"InstanceProfileName": found.id, "RoleName": found.context});
            calls.push(iam("RemoveRoleFromInstanceProfile", request));
        }
        calls.push(iam("DeleteInstanceProfile", json!({"InstanceProfileName": found.id})));
        calls
    }

    fn refs(&self) -> Vec<&Ref> {
        self.role.iter().collect()
    }

    fn has_compared_tags(&self) -> bool {
        false
    }

    fn desired_fields(&self, _own: &Header<'_>, _ids: &Ids) -> Fields {
        fields(self.role.as_ref().map(|role| ("Role", role.name.clone())))
    }

    fn create(&self, own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        let request = json!({"InstanceProfileName": own.name, "Tags": tag_pairs(own.tags)});
        let creation = Creation::new(iam("CreateInstanceProfile", request), IdSource::Name);
        Ok(creation.with_later(["Role"]))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        // A profile with another role belongs to another owner.
        if self.role.is_none() || !update.found.context.is_empty() {
            update.validate_fields(&[])?;
        }
        let Some(role) = &self.role else { return Ok(Vec::new()) };
        let request = json!({"InstanceProfileName": update.own.name, "RoleName": role.name});
        Ok(vec![iam("AddRoleToInstanceProfile", request)])
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text("name", own.name).tags(own.tags);
        block.opt_value("role", self.role.as_ref().map(|role| writer.link(role)));
        Ok(block)
    }
}

/// An OIDC provider, which authenticates service accounts.
#[derive(Clone, Debug)]
pub struct OidcProvider {
    /// The issuer's URL.
    pub url: String,
    /// The audiences of tokens.
    pub audiences: Vec<String>,
    /// The fingerprints of the issuer's certificate authorities.
    pub thumbprints: Vec<String>,
}

impl Operations for OidcProvider {
    fn queries(scope: &Scope, answers: &Answers) -> Vec<Call> {
        if scope.issuer.is_empty() {
            return Vec::new();
        }
        let mut all = vec![iam("ListOpenIDConnectProviders", json!({}))];
        let issuer = scope.issuer.trim_start_matches("https://");
        for provider in answers.each("ListOpenIDConnectProviders", "OpenIDConnectProviderList") {
            let arn = provider.text("Arn");
            if arn.split_once(":oidc-provider/").is_some_and(|(_, name)| name == issuer) {
                let request = json!({"OpenIDConnectProviderArn": arn});
                all.push(iam("GetOpenIDConnectProvider", request));
            }
        }
        all
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let found = answers.of("GetOpenIDConnectProvider").map(|(parameters, page)| {
            let list = |path: &str| sorted(page.texts(path).map(str::to_owned).collect());
            let found = ExistingResource {
                id: parameters.text("OpenIDConnectProviderArn").to_owned(),
                fields: fields([
                    ("Audiences", list("ClientIDList")),
                    ("Thumbprints", list("ThumbprintList")),
                ]),
                owned: is_owned(&tags(page.items("Tags")), &scope.cluster),
                context: String::new(),
            };
            (scope.cluster.clone(), found)
        });
        found.collect()
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        let request = json!({"OpenIDConnectProviderArn": found.id});
        vec![iam("DeleteOpenIDConnectProvider", request)]
    }

    fn terraform_reference() -> &'static str {
        "arn"
    }

    fn extend_scope(&self, _shared: Option<&str>, scope: &mut Scope) {
        self.url.clone_into(&mut scope.issuer);
    }

    fn has_compared_tags(&self) -> bool {
        false
    }

    fn desired_fields(&self, _own: &Header<'_>, _ids: &Ids) -> Fields {
        fields([
            ("Audiences", sorted(self.audiences.clone())),
            ("Thumbprints", sorted(self.thumbprints.clone())),
        ])
    }

    fn create(&self, own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        let request = json!({"Url": self.url, "ClientIDList": self.audiences,
            "ThumbprintList": self.thumbprints, "Tags": tag_pairs(own.tags)});
        let call = iam("CreateOpenIDConnectProvider", request);
        Ok(Creation::new(call, IdSource::Field("OpenIDConnectProviderArn")))
    }

    fn terraform(&self, own: &Header<'_>, _writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.value("client_id_list", Expr::texts(&self.audiences)).tags(own.tags);
        block.value("thumbprint_list", Expr::texts(&self.thumbprints)).text("url", &self.url);
        Ok(block)
    }
}
