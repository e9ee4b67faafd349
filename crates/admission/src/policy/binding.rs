//! Bindings of policies: what they bind them to, and with which parameters.

use api_meta::{LabelSelector, Selector, Status, Tree as _};
use serde::Deserialize as _;
use serde_json::Value;

use crate::{
    Request,
    matching::{MatchResources, Shown},
};

/// What has a policy asked: for which requests, with which parameters, and what comes of it.
#[derive(Clone, Debug)]
pub struct Binding {
    pub name: String,
    /// The policy that it binds.
    pub policy: String,
    pub params: Option<ParamRef>,
    /// `validationActions`
    pub(super) actions: Vec<String>,
    resources: Option<MatchResources>,
}

/// Which objects a policy gets as its parameters, one after the other.
#[derive(Clone, Debug)]
pub struct ParamRef {
    names: Names,
    namespace: String,
    /// `parameterNotFoundAction: Deny`
    must_be: bool,
}

/// Which parameters a reference names.
#[derive(Clone, Debug)]
pub enum Names {
    One(String),
    Selected(Result<Selector, String>),
    /// Validation lets no such reference in.
    Neither,
}

/// Where parameters are to be looked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Lookup<'a> {
    /// Empty for kinds that are in none.
    pub namespace: &'a str,
    /// Empty for all that `matches` selects.
    pub name: &'a str,
}

impl Binding {
    /// Reads a binding of either kind of policy.
    pub fn of(binding: &Value) -> Self {
        let spec = &binding["spec"];
        let actions = spec.items("validationActions").iter().filter_map(Value::as_str);
        Self {
            name: binding.text("metadata.name").to_owned(),
            policy: spec.text("policyName").to_owned(),
            params: spec.has("paramRef").then(|| ParamRef::of(&spec["paramRef"])),
            actions: actions.map(str::to_owned).collect(),
            resources: spec
                .has("matchResources")
                .then(|| MatchResources::of(&spec["matchResources"])),
        }
    }

    /// Whether the policy is to be asked about a request for this binding's sake.
    pub fn concerns(
        &self,
        request: &Request<'_>,
        object: &Value,
        equivalents: &dyn Fn() -> Vec<Shown>,
    ) -> Result<bool, Status> {
        let Some(resources) = &self.resources else { return Ok(true) };
        Ok(resources.find(request, object, equivalents)?.is_some())
    }
}

impl ParamRef {
    fn of(reference: &Value) -> Self {
        let selector = || {
            let read = LabelSelector::deserialize(&reference["selector"]);
            let read = read.map_err(|e| e.to_string())?;
            LabelSelector::selector_of(Some(&read)).map_err(|e| e.to_string())
        };
        Self {
            names: match reference.text("name") {
                "" if reference["selector"].is_object() => Names::Selected(selector()),
                "" => Names::Neither,
                name => Names::One(name.to_owned()),
            },
            namespace: reference.text("namespace").to_owned(),
            must_be: reference.text("parameterNotFoundAction") == "Deny",
        }
    }

    /// Where the parameters of a request are, for a kind that is in namespaces or not.
    pub fn lookup<'a>(
        &'a self,
        request: &Request<'a>,
        namespaced: bool,
    ) -> Result<Lookup<'a>, String> {
        let namespace = match (namespaced, self.namespace.as_str()) {
            (true, "") if request.namespace.is_empty() => {
                return Err("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned());
            }
            (true, "") => request.namespace,
            (true, named) => named,
            (false, "") => "",
            (false, _) => {
                return Err(
                    "paramRef.namespace must not be provided for a cluster-scoped `paramKind`"
                        .to_owned(),
                );
            }
        };
        match &self.names {
            Names::One(name) => Ok(Lookup { namespace, name }),
            Names::Selected(Ok(_)) => Ok(Lookup { namespace, name: "" }),
            Names::Selected(Err(error)) => Err(error.clone()),
            Names::Neither => Err("one of name or selector must be provided".to_owned()),
        }
    }

    /// Whether an object that was looked up is one of the parameters.
    pub fn selects(&self, object: &Value) -> bool {
        match &self.names {
            Names::Selected(Ok(selector)) => {
                selector.matches_json(object["metadata"]["labels"].as_object())
            }
            _ => true,
        }
    }

    /// The parameters, as they were found. Where there are none the policy is not asked, unless the request is refused.
    pub fn found(&self, params: Vec<Value>) -> Result<Vec<Value>, String> {
        if params.is_empty() && self.must_be {
            return Err(
                "no params found for policy binding with `Deny` parameterNotFoundAction".to_owned()
            );
        }
        Ok(params)
    }
}
