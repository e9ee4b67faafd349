//! IAM policy documents: statements, and actions grouped by scope.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::error::Error;

/// The actions of each part of a cluster.
const FACTS: &str = include_str!("../../../facts/iam.tsv");
const VERSION: &str = "2012-10-17";
const TAG: &str = "KubernetesCluster";

/// A statement. Null fields are omitted.
#[derive(Clone, Debug, Default)]
pub(super) struct Statement {
    /// The allowed actions.
    pub(super) action: Value,
    /// The condition; `null` for none.
    pub(super) condition: Value,
    /// The principal of a trust or resource policy; `null` for none.
    pub(super) principal: Value,
    /// The resources; `null` for none.
    pub(super) resource: Value,
}

impl Statement {
    pub(super) fn allow(actions: &[&str], resources: &[String]) -> Self {
        let (action, resource) = (one_or_all(actions), one_or_all(resources));
        Self { action, resource, ..Self::default() }
    }

    /// Returns a statement with lists even for single values, as upstream writes some.
    pub(super) fn allow_listed(actions: &[&str], resources: &[String]) -> Self {
        let (action, resource) = (json!(sorted(actions)), json!(sorted(resources)));
        Self { action, resource, ..Self::default() }
    }

    pub(super) fn when(self, condition: Value) -> Self {
        Self { condition, ..self }
    }

    fn value(&self) -> Value {
        let fields = [
            ("Action", self.action.clone()),
            ("Condition", self.condition.clone()),
            ("Effect", "Allow".into()),
            ("Principal", self.principal.clone()),
            ("Resource", self.resource.clone()),
        ];
        let present = fields.into_iter().filter(|(_, value)| !value.is_null());
        Value::Object(Map::from_iter(present.map(|(name, value)| (name.to_owned(), value))))
    }
}

fn sorted<T: AsRef<str>>(texts: &[T]) -> Vec<String> {
    let set: BTreeSet<&str> = texts.iter().map(AsRef::as_ref).collect();
    set.into_iter().map(str::to_owned).collect()
}

fn one_or_all<T: AsRef<str>>(texts: &[T]) -> Value {
    let all = sorted(texts);
    match all.as_slice() {
        [one] => one.clone().into(),
        _ => json!(all),
    }
}

/// Returns a document of statements, indented like Go's encoder does.
pub(super) fn document(statements: &[Statement]) -> String {
    written(statements.iter().map(Statement::value).collect())
}

fn written(statements: Vec<Value>) -> String {
    let policy = json!({"Statement": statements, "Version": VERSION});
    // A tree of strings always serializes.
    serde_json::to_string_pretty(&policy).unwrap_or_default()
}

/// Returns a document of the user's statements, given as a JSON list. All their fields are kept.
pub(super) fn user_document(field: &str, text: &str) -> Result<String, Error> {
    let wrong = |reason: String| Error::value(field, text, reason);
    let parsed: Value =
        serde_json::from_str(text).map_err(|e| wrong(format!("is not JSON: {e}")))?;
    let Value::Array(mut statements) = parsed else {
        return Err(wrong("is not a list of statements".to_owned()));
    };
    for statement in &mut statements {
        let Value::Object(fields) = statement else {
            return Err(wrong("has a statement that is not an object".to_owned()));
        };
        for name in ["Action", "Resource"] {
            if let Some(Value::Array(items)) = fields.get_mut(name) {
                items.sort_by_key(Value::to_string);
                items.dedup();
            }
        }
    }
    Ok(written(statements))
}

/// Returns the trust policy of the machines' roles: EC2 instances may assume them.
pub(super) fn machine_trust_policy(region: &str) -> String {
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!(
        "{{\n  \"Version\": \"{VERSION}\",\n  \"Statement\": [\n    {{\n      \"Effect\": \"Allow\",\n      \
         \"Principal\": {{ \"Service\": \"ec2.{domain}\"}},\n      \"Action\": \"sts:AssumeRole\"\n    }}\n  ]\n}}"
    )
}

/// A policy under construction: explicit statements, and actions grouped by scope.
pub(super) struct Policy<'a> {
    cluster: &'a str,
    partition: &'a str,
    region: &'a str,
    statements: Vec<Statement>,
    any: BTreeSet<&'static str>,
    tagged: BTreeSet<&'static str>,
    created: BTreeSet<&'static str>,
    keys: BTreeSet<&'static str>,
}

impl<'a> Policy<'a> {
    pub(super) fn new(cluster: &'a str, partition: &'a str, region: &'a str) -> Self {
        let (any, tagged, created, keys) = Default::default();
        Self { cluster, partition, region, statements: Vec::new(), any, tagged, created, keys }
    }

    pub(super) fn push(&mut self, statement: Statement) {
        self.statements.push(statement);
    }

    /// Allows the actions of a part of the cluster.
    pub(super) fn grant(&mut self, part: &str) {
        for line in FACTS.lines().filter(|line| !line.starts_with('#')) {
            let mut fields = line.split('\t');
            let (Some(of), Some(scope), Some(action)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            if of == part {
                let set = match scope {
                    "tagged" => &mut self.tagged,
                    "created" => &mut self.created,
                    "key" => &mut self.keys,
                    _ => &mut self.any,
                };
                set.insert(action);
            }
        }
    }

    /// Allows the use of KMS keys everywhere, not only through EC2 and S3.
    pub(super) fn free_keys(&mut self) {
        let keys = std::mem::take(&mut self.keys);
        self.any.extend(keys);
    }

    /// Allows the creation of tagged resources in EC2, and the change of other tags of the cluster's own resources.
    pub(super) fn make(&mut self, actions: &[&'static str], kinds: &[&str]) {
        let resources: Vec<String> = kinds.iter().map(|kind| self.ec2(kind)).collect();
        let names: Vec<&str> =
            actions.iter().filter_map(|action| action.strip_prefix("ec2:")).collect();
        self.created.extend(actions);
        let condition = json!({"StringEquals": {
            format!("aws:RequestTag/{TAG}"): self.cluster, "ec2:CreateAction": names,
        }});
        let tags = Statement::allow_listed(&[], &resources);
        self.push(Statement { action: "ec2:CreateTags".into(), ..tags }.when(condition));
        let condition = json!({
            "Null": {format!("aws:RequestTag/{TAG}"): "true"},
            "StringEquals": {format!("aws:ResourceTag/{TAG}"): self.cluster},
        });
        let both = ["ec2:CreateTags", "ec2:DeleteTags"];
        self.push(Statement::allow_listed(&both, &resources).when(condition));
    }

    /// Returns the ARN pattern of all EC2 resources of a kind.
    pub(super) fn ec2(&self, kind: &str) -> String {
        format!("arn:{}:ec2:*:*:{kind}/*", self.partition)
    }

    /// Returns the condition that a resource has the cluster's tag.
    pub(super) fn owned(&self) -> Value {
        json!({"StringEquals": {format!("aws:ResourceTag/{TAG}"): self.cluster}})
    }

    pub(super) fn document(mut self) -> String {
        let all = |actions: &BTreeSet<&'static str>, condition: Value| {
            let actions: Vec<&str> = actions.iter().copied().collect();
            let statement = Statement::allow(&actions, &["*".to_owned()]).when(condition);
            (!actions.is_empty()).then_some(statement)
        };
        let services = [format!("ec2.{}.amazonaws.com", self.region), "s3.*.amazonaws.com".into()];
        let by = json!({"StringLike": {"kms:ViaService": services}});
        let created = json!({"StringEquals": {format!("aws:RequestTag/{TAG}"): self.cluster}});
        let scoped = [
            all(&self.keys, by),
            all(&self.any, Value::Null),
            all(&self.tagged, self.owned()),
            all(&self.created, created),
        ];
        self.statements.extend(scoped.into_iter().flatten());
        // A security group is created in a VPC, which has no tag of the request.
        if self.created.contains("ec2:CreateSecurityGroup") {
            let vpcs = [self.ec2("vpc")];
            self.statements.push(Statement::allow(&["ec2:CreateSecurityGroup"], &vpcs));
        }
        document(&self.statements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_all_fields_of_users_statements() {
        let text = r#"[{"Effect":"Deny","Sid":"a","NotAction":["s3:*"],"Resource":["b","a","a"]}]"#;
        let written = user_document("spec.additionalPolicies[node]", text).unwrap();
        let parsed: Value = serde_json::from_str(&written).unwrap();
        let statement = &parsed["Statement"][0];
        assert_eq!(statement["NotAction"], json!(["s3:*"]));
        assert_eq!((&statement["Sid"], &statement["Effect"]), (&json!("a"), &json!("Deny")));
        assert_eq!(statement["Resource"], json!(["a", "b"]));
        for wrong in ["{}", "[1]", "[", "\"x\""] {
            let error =
                user_document("spec.additionalPolicies[node]", wrong).unwrap_err().to_string();
            assert!(error.starts_with("spec.additionalPolicies[node]"), "{error}");
        }
    }
}
