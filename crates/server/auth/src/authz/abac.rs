//! Attribute-based access control (abac.authorization.kubernetes.io): `--authorization-policy-file` has one policy per
//! line.

use api_meta::{Attributes, Authorizer, Decision, user::GROUP_AUTHENTICATED};
use serde::Deserialize;
use serde_json::Value;

const VERSION: &str = "abac.authorization.kubernetes.io/v1beta1";

/// An invalid line, counted from 1.
#[derive(Debug, thiserror::Error)]
#[error("error reading policy file, line {line}: {text}: {source}")]
pub struct PolicyError {
    line: usize,
    text: String,
    source: LineError,
}

/// The reason why a line is not a policy.
#[derive(Debug, thiserror::Error)]
enum LineError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("a policy must be a JSON object")]
    NotObject,
    #[error("no kind \"{kind}\" is registered for version \"{version}\"")]
    UnknownKind { kind: String, version: String },
}

/// The policies of a file. A request is allowed if any policy allows it.
#[derive(Debug)]
pub struct Abac(Vec<Policy>);

/// A policy: a user or group and the allowed requests. `*` matches everything, and an empty field nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Policy {
    user: String,
    group: String,
    readonly: bool,
    api_group: String,
    resource: String,
    namespace: String,
    #[serde(rename = "nonResourcePath")]
    path: String,
}

impl Abac {
    /// Parses a file. Lines that start with `#` are comments.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
        let lines = lines.filter(|(_, text)| !text.is_empty() && !text.starts_with('#'));
        let policies = lines.map(|(line, text)| {
            Policy::parse(text).map_err(|source| PolicyError {
                line,
                text: text.to_owned(),
                source,
            })
        });
        Ok(Self(policies.collect::<Result<_, _>>()?))
    }
}

impl Policy {
    fn parse(text: &str) -> Result<Self, LineError> {
        let tree: Value = serde_json::from_str(text)?;
        let read = |tree: &Value| match tree {
            Value::Object(_) => Ok(Self::deserialize(tree)?),
            _ => Err(LineError::NotObject),
        };
        let policy = match api_config::gvk(&tree) {
            (VERSION, "Policy") => read(&tree["spec"])?,
            // The original format has no version, and an empty field matches everything.
            ("", _) | (_, "") => read(&tree)?.first_form(),
            (version, kind) => {
                let (kind, version) = (kind.to_owned(), version.to_owned());
                return Err(LineError::UnknownKind { kind, version });
            }
        };
        let everybody = policy.user == "*" || policy.group == "*";
        if everybody {
            return Ok(Self {
                user: String::new(),
                group: GROUP_AUTHENTICATED.to_owned(),
                ..policy
            });
        }
        Ok(policy)
    }

    fn first_form(self) -> Self {
        let all = |text: String| if text.is_empty() { "*".to_owned() } else { text };
        let paths = self.namespace.is_empty() && self.resource.is_empty();
        let anybody = self.user.is_empty() && self.group.is_empty();
        Self {
            group: if anybody { "*".to_owned() } else { self.group },
            api_group: "*".to_owned(),
            namespace: all(self.namespace),
            resource: all(self.resource),
            path: if paths { "*".to_owned() } else { String::new() },
            ..self
        }
    }

    fn allows(&self, request: &Attributes<'_>) -> bool {
        let user = request.user;
        let named = !self.user.is_empty() || !self.group.is_empty();
        let who = named
            && (self.user.is_empty() || self.user == user.name)
            && (self.group.is_empty() || user.in_group(&self.group));
        let reads = matches!(request.verb, "get" | "list" | "watch");
        let is = |wanted: &str, given: &str| wanted == "*" || wanted == given;
        let what = if request.is_resource {
            is(&self.namespace, request.namespace)
                && is(&self.resource, request.resource)
                && is(&self.api_group, request.group)
        } else {
            let below = self.path.strip_suffix('*');
            self.path == request.path || below.is_some_and(|p| request.path.starts_with(p))
        };
        who && (reads || !self.readonly) && what
    }
}

impl Authorizer for Abac {
    fn authorize(&self, request: &Attributes<'_>) -> Decision {
        if self.0.iter().any(|policy| policy.allows(request)) {
            Decision::Allow(None)
        } else {
            Decision::NoOpinion(Some("No policy matched.".into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use api_meta::UserInfo;

    use super::*;

    #[test]
    fn policies_allow_matching_requests() {
        let beta = |spec: &str| {
            format!(r#"{{"apiVersion":"{VERSION}","kind":"Policy","spec":{{{spec}}}}}"#)
        };
        let alice = UserInfo::new("alice", &["dev", GROUP_AUTHENTICATED]);
        let pods = Attributes::resource(&alice, "create", "", "pods").in_namespace("a");
        let read = Attributes { verb: "get", ..pods };
        let path = Attributes::path(&alice, "get", "/healthz/x");
        // The policy, and whether it allows a write, a read and a path.
        for (line, allowed) in [
            (
                beta(r#""user":"alice","namespace":"*","resource":"*","apiGroup":"*""#),
                [true, true, false],
            ),
            (beta(r#""user":"alice","namespace":"a","resource":"pods""#), [true, true, false]),
            (beta(r#""user":"alice","namespace":"b","resource":"pods""#), [false; 3]),
            (beta(r#""user":"alice","group":"ops","namespace":"*","resource":"*""#), [false; 3]),
            (
                beta(r#""group":"dev","namespace":"a","resource":"pods","readonly":true"#),
                [false, true, false],
            ),
            (beta(r#""group":"*","nonResourcePath":"/healthz/*""#), [false, false, true]),
            (beta(r#""group":"*","nonResourcePath":"/healthz""#), [false; 3]),
            (beta(r#""namespace":"*","resource":"*","apiGroup":"*""#), [false; 3]),
            (r#"{"user":"alice"}"#.to_owned(), [true; 3]),
            (r#"{"resource":"pods","readonly":true}"#.to_owned(), [false, true, false]),
            (r#"{"user":"bob"}"#.to_owned(), [false; 3]),
        ] {
            let abac = Abac::parse(&format!("# a comment\n\n{line}\n")).unwrap();
            let got = [pods, read, path].map(|request| abac.authorize(&request).is_allowed());
            assert_eq!(got, allowed, "{line}");
        }
    }

    #[test]
    fn reports_invalid_line() {
        for line in ["{", "[]", r#"{"apiVersion":"v1","kind":"Policy"}"#, r#"{"readonly":1}"#] {
            let error = Abac::parse(&format!("#\n{line}")).unwrap_err();
            assert!(
                error.to_string().starts_with("error reading policy file, line 2: "),
                "{error}"
            );
        }
    }
}
