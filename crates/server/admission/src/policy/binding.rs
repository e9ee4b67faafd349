//! Bindings of policies: their match constraints, parameters and actions.

use api_meta::{Selector, Status, Tree as _};
use serde_json::Value;

use crate::{
    matching::{LabelSelectorError, MatchResources, MatchedResource, label_selector},
    request::Request,
};

/// A binding: the requests to which a policy applies, its parameters, and the actions on a failure.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The binding's name.
    pub name: String,
    /// The name of the bound policy.
    pub policy: String,
    /// The reference to the parameters; `None` if the policy gets none.
    pub params: Option<ParamRef>,
    /// The `validationActions`.
    pub(super) actions: Vec<String>,
    resources: Option<MatchResources>,
}

/// A reference to the objects that a policy gets as parameters, one evaluation per object.
#[derive(Clone, Debug)]
pub struct ParamRef {
    names: Names,
    namespace: String,
    /// `true` for `parameterNotFoundAction: Deny`.
    must_exist: bool,
}

/// The selection of parameters by a reference.
#[derive(Clone, Debug)]
pub enum Names {
    One(String),
    Selected(Result<Selector, LabelSelectorError>),
    /// Neither a name nor a selector, which validation rejects.
    Neither,
}

/// The reason why a policy has no parameters for a request, with upstream's messages.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ParamError {
    #[error(
        "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
    )]
    ClusterScopedRequest,
    #[error("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")]
    ClusterScopedKind,
    #[error(transparent)]
    Selector(#[from] LabelSelectorError),
    #[error("one of name or selector must be provided")]
    NoReference,
    #[error("no params found for policy binding with `Deny` parameterNotFoundAction")]
    NotFound,
}

/// The namespace and name under which the API server looks up parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Lookup<'a> {
    /// The namespace; empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// The name; empty to list all objects that [`ParamRef::selects`].
    pub name: &'a str,
}

impl Binding {
    /// Reads a binding of either kind.
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

    /// Reports whether the binding applies its policy to a request.
    pub fn concerns(
        &self,
        request: &Request<'_>,
        object: &Value,
        equivalents: &dyn Fn() -> Vec<MatchedResource>,
    ) -> Result<bool, Status> {
        let Some(resources) = &self.resources else { return Ok(true) };
        Ok(resources.find(request, object, equivalents)?.is_some())
    }
}

impl ParamRef {
    fn of(reference: &Value) -> Self {
        Self {
            names: match reference.text("name") {
                "" if reference["selector"].is_object() => {
                    Names::Selected(label_selector(&reference["selector"]))
                }
                "" => Names::Neither,
                name => Names::One(name.to_owned()),
            },
            namespace: reference.text("namespace").to_owned(),
            must_exist: reference.text("parameterNotFoundAction") == "Deny",
        }
    }

    /// Returns where the parameters of a request are. `namespaced` describes the kind of the parameters.
    pub fn lookup<'a>(
        &'a self,
        request: &Request<'a>,
        namespaced: bool,
    ) -> Result<Lookup<'a>, ParamError> {
        let namespace = match (namespaced, self.namespace.as_str()) {
            (true, "") if request.namespace.is_empty() => {
                return Err(ParamError::ClusterScopedRequest);
            }
            (true, "") => request.namespace,
            (true, named) => named,
            (false, "") => "",
            (false, _) => return Err(ParamError::ClusterScopedKind),
        };
        match &self.names {
            Names::One(name) => Ok(Lookup { namespace, name }),
            Names::Selected(Ok(_)) => Ok(Lookup { namespace, name: "" }),
            Names::Selected(Err(error)) => Err(error.clone().into()),
            Names::Neither => Err(ParamError::NoReference),
        }
    }

    /// Reports whether a listed object is one of the parameters.
    pub fn selects(&self, object: &Value) -> bool {
        match &self.names {
            Names::Selected(Ok(selector)) => {
                selector.matches_json(object.at("metadata.labels").as_object())
            }
            _ => true,
        }
    }

    /// Returns the parameters that were looked up. Without any, the policy is skipped or the request is rejected, as
    /// `parameterNotFoundAction` says.
    pub fn require(&self, params: Vec<Value>) -> Result<Vec<Value>, ParamError> {
        if params.is_empty() && self.must_exist {
            return Err(ParamError::NotFound);
        }
        Ok(params)
    }
}
