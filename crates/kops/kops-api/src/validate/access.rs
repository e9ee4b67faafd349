//! Validates policies of roles, service accounts' permissions, AWS' authenticator, and the API's load balancer.

use std::net::Ipv4Addr;

use api_meta::{Cidr, ErrorList, FieldError, Path, Tree as _};
use serde_json::Value;

use super::{
    paths::spec,
    values::{arn_resource, validate_range},
};

pub(super) const ROLES: [&str; 4] = ["control-plane", "apiserver", "node", "bastion"];

pub(super) fn validate(tree: &Value, complete: bool, errors: &mut ErrorList) {
    let policies = tree.at("additionalPolicies").as_object();
    for (role, policy) in policies.into_iter().flatten() {
        validate_statements(role, policy.as_str().unwrap_or_default(), errors);
    }
    validate_accounts(tree.items("iam.serviceAccountExternalPermissions"), errors);
    for field in ["api.access", "sshAccess", "nodePortAccess"] {
        for (number, text) in tree.texts(field).enumerate() {
            // A prefix list of AWS stands for ranges.
            if !text.starts_with("pl-") {
                validate_range(&spec(field).index(number), text, errors);
            }
        }
    }
    if tree.has("cloudProvider.aws") {
        validate_authenticator(tree, errors);
        validate_load_balancer(tree, complete, errors);
    }
    let subnets = tree.items("networking.subnets");
    let has_private = subnets.iter().any(|subnet| subnet.text("type") == "Private");
    if tree.text("api.loadBalancer.type") == "Internal" && !has_private {
        let detail = "Internal LoadBalancers must have at least one subnet of type Private";
        errors.push(FieldError::forbidden(&spec("api.loadBalancer.type"), detail));
    }
}

fn validate_statements(role: &str, policy: &str, errors: &mut ErrorList) {
    let at = spec("additionalPolicies");
    if !ROLES.contains(&role) {
        errors.push(FieldError::not_supported(&at, role, &ROLES));
    }
    let statements = match serde_json::from_str::<Value>(policy) {
        Ok(Value::Array(statements)) => statements,
        Ok(_) => {
            errors.push(FieldError::invalid(
                &at.key(role),
                policy,
                "policy was not valid JSON: it is not a list of statements",
            ));
            return;
        }
        Err(error) => {
            errors.push(FieldError::invalid(
                &at.key(role),
                policy,
                format!("policy was not valid JSON: {error}"),
            ));
            return;
        }
    };
    for (number, statement) in statements.iter().enumerate() {
        let at = at.key(role).index(number).child("Effect");
        match statement.text("Effect") {
            "" => errors.push(FieldError::required(&at, "Effect must be specified for IAM policy")),
            "Allow" | "Deny" => {}
            other => errors.push(FieldError::not_supported(&at, other, &["Allow", "Deny"])),
        }
    }
}

fn validate_accounts(accounts: &[Value], errors: &mut ErrorList) {
    let root = spec("iam.serviceAccountExternalPermissions");
    let key = |account: &Value| format!("{}/{}", account.text("namespace"), account.text("name"));
    for (number, account) in accounts.iter().enumerate() {
        let at = root.key(&key(account));
        for field in ["namespace", "name"].iter().filter(|field| account.text(field).is_empty()) {
            errors.push(FieldError::required(&at.child(field), format!("{field} cannot be empty")));
        }
        if accounts[..number].iter().any(|other| key(other) == key(account)) {
            errors.push(FieldError::duplicate(&at, key(account)));
        }
        let at = at.child("aws");
        let arns = !account.items("aws.policyARNs").is_empty();
        let inline = !account.text("aws.inlinePolicy").is_empty();
        match (account.has("aws"), arns, inline) {
            (false, _, _) => errors.push(FieldError::required(&at, "AWS permissions must be set")),
            (true, false, false) => {
                errors.push(FieldError::required(
                    &at,
                    "either inlinePolicy or policyARN must be set",
                ));
            }
            (true, true, true) => {
                errors
                    .push(FieldError::forbidden(&at, "cannot set both inlinePolicy and policyARN"));
            }
            _ => {}
        }
    }
}

fn validate_authenticator(tree: &Value, errors: &mut ErrorList) {
    let Some(aws) = tree.opt_at("authentication.aws") else { return };
    let at = spec("authentication.aws");
    let mappings = aws.items("identityMappings");
    if !aws.text("backendMode").contains("CRD") && !mappings.is_empty() {
        let detail = "backendMode must be CRD if identityMappings is set";
        errors.push(FieldError::forbidden(&at.child("backendMode"), detail));
    }
    for (number, mapping) in mappings.iter().enumerate() {
        let arn = mapping.text("arn");
        let fits = |resource: &str| resource.starts_with("role/") || resource.starts_with("user/");
        if !arn_resource(arn).is_some_and(fits) {
            let detail = "arn must be a valid IAM Role or User ARN such as \
                          arn:aws:iam::123456789012:role/KopsExampleRole";
            let at = at.child("identityMappings").index(number).child("arn");
            errors.push(FieldError::invalid(&at, arn, detail));
        }
    }
}

fn validate_load_balancer(tree: &Value, complete: bool, errors: &mut ErrorList) {
    let Some(balancer) = tree.opt_at("api.loadBalancer") else { return };
    let at = spec("api.loadBalancer");
    let network = balancer.text("class") == "Network";
    let internal = balancer.text("type") == "Internal";
    let mut forbid =
        |field: &str, detail: &str| errors.push(FieldError::forbidden(&at.child(field), detail));
    if tree.text("networking.topology.dns") == "None" && !network {
        forbid("type", "topology.dns.type=none requires Network Load Balancer");
    }
    if network && internal && balancer.flag("useForInternalAPI") {
        forbid(
            "useForInternalAPI",
            "useForInternalAPI cannot be used with internal NLB due lack of hairpinning support",
        );
    }
    if !balancer.text("sslCertificate").is_empty() && !network {
        forbid(
            "sslCertificate",
            "sslCertificate requires a network load balancer. See \
             https://github.com/kubernetes/kops/blob/master/permalinks/acm_nlb.md",
        );
    }
    if balancer.has("sslPolicy") && !network {
        forbid("sslPolicy", "sslPolicy should be specified with Network Load Balancer");
    }
    if balancer.has("sslPolicy") && balancer.text("sslCertificate").is_empty() {
        forbid("sslPolicy", "sslPolicy should not be specified without SSLCertificate");
    }
    if complete && balancer.text("class").is_empty() {
        let classes = ["Classic", "Network"];
        errors.push(FieldError::not_supported(&at.child("class"), "", &classes));
    }
    if let Some(group) = balancer.at("securityGroupOverride").as_str() {
        let detail = match group.trim() {
            "" => "security group override cannot be empty, if specified",
            _ => "security group override does not match the expected AWS format",
        };
        if !group.starts_with("sg-") {
            errors.push(FieldError::invalid(&at.child("securityGroupOverride"), group, detail));
        }
    }
    validate_security_groups(
        &balancer.texts("additionalSecurityGroups").collect::<Vec<_>>(),
        &at.child("additionalSecurityGroups"),
        errors,
    );
    for (number, subnet) in balancer.items("subnets").iter().enumerate() {
        validate_balancer_subnet(
            tree,
            subnet,
            (network, internal),
            &at.child("subnets").index(number),
            errors,
        );
    }
}

fn validate_balancer_subnet(
    tree: &Value,
    subnet: &Value,
    (network, internal): (bool, bool),
    at: &Path,
    errors: &mut ErrorList,
) {
    let name = subnet.text("name");
    let found = tree.items("networking.subnets").iter().find(|s| s.text("name") == name);
    if name.is_empty() {
        errors.push(FieldError::required(&at.child("name"), "subnet name can't be empty"));
    } else if found.is_none() {
        let detail = format!("subnet {name:?} not found in cluster subnets");
        errors.push(FieldError::not_found(&at.child("name"), detail));
    }
    if let Some(text) = subnet.at("privateIPv4Address").as_str() {
        let at = at.child("privateIPv4Address");
        let address = text.parse::<Ipv4Addr>();
        let range = found.and_then(|s| s.text("cidr").parse::<Cidr>().ok());
        if text.is_empty() {
            errors.push(FieldError::required(&at, "privateIPv4Address can't be empty"));
        }
        match (address, range) {
            (Err(_), _) => {
                errors.push(FieldError::invalid(
                    &at,
                    text,
                    "privateIPv4Address is not a valid IPv4 address",
                ));
            }
            (Ok(ip), Some(range)) if !range.contains(ip.into()) => {
                errors.push(FieldError::invalid(
                    &at,
                    text,
                    "privateIPv4Address is not part of the subnet CIDR",
                ));
            }
            _ => {}
        }
        if !network || !internal {
            errors.push(FieldError::forbidden(
                &at,
                "privateIPv4Address only allowed for internal NLBs",
            ));
        }
    }
    if let Some(text) = subnet.at("allocationID").as_str() {
        let at = at.child("allocationID");
        if text.is_empty() {
            errors.push(FieldError::required(&at, "allocationID can't be empty"));
        }
        if !network || internal {
            errors.push(FieldError::forbidden(&at, "allocationID only allowed for Public NLBs"));
        }
    }
}

pub(super) fn validate_security_groups(groups: &[&str], at: &Path, errors: &mut ErrorList) {
    for (number, group) in groups.iter().enumerate() {
        let at = at.index(number);
        if groups[..number].contains(group) {
            errors.push(FieldError::duplicate(&at, *group));
        }
        if group.trim().is_empty() {
            errors.push(FieldError::invalid(
                &at,
                *group,
                "security group cannot be empty, if specified",
            ));
        } else if !group.starts_with("sg-") {
            let detail = "security group does not match the expected AWS format";
            errors.push(FieldError::invalid(&at, *group, detail));
        }
    }
}
