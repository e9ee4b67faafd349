//! Second authorisations: what upstream's API server asks of its authorisers beyond the one question of the filter
//! chain.
//!
//! [`SECOND`] is the whole list. Handlers do not know its rows: at each [`Moment`] of a request they ask once, and
//! every row on that resource answers. Rows of admission plugins and of impersonation are asked by those, because a
//! flag can turn a plugin off and impersonation comes before there is a handler; the list names them so that it is
//! whole.

mod claims;
mod create;
mod policies;
#[cfg(test)]
mod tests;

use api_meta::{Attributes, Authorizer, ErrorList, Objects, Status};
use serde_json::Value;

use crate::rbac::{self, Rbac};

/// A request that the filter chain has let through, and what is about to come of it.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// What the filter chain was asked.
    pub request: &'a Attributes<'a>,
    /// Absent when the object is new.
    pub old: Option<&'a Value>,
    /// Null for a connection.
    pub new: &'a Value,
    pub authorizer: &'a dyn Authorizer,
    pub rbac: &'a Rbac,
    pub objects: &'a dyn Objects,
}

/// Where in a request handlers ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before a connection goes on to a kubelet.
    Connect,
    /// Before a new or changed object is validated, after admission has changed it.
    Write,
    /// Before validating admission, where an object is new.
    Create,
}

/// Who asks, and how.
#[derive(Clone, Copy)]
pub enum Ask {
    /// A handler, and a refusal is its answer.
    At(Moment, fn(&Asked<'_>) -> Result<(), Status>),
    /// A handler with an object's validation, and a refusal is an error of a field.
    InValidation(fn(&Asked<'_>, &mut ErrorList)),
    /// The admission plugin of this name.
    InAdmission(&'static str),
    /// `authn::impersonation`.
    Impersonating,
}

/// One row of the list.
pub struct Second {
    /// What is asked for, in Kubernetes' words.
    pub name: &'static str,
    /// `*` stands for every group.
    pub group: &'static str,
    /// `*` stands for every resource.
    pub resource: &'static str,
    /// Empty for the resource itself.
    pub subresources: &'static [&'static str],
    pub ask: Ask,
}

impl Second {
    fn is_on(&self, request: &Attributes<'_>) -> bool {
        let is = |wanted: &str, given: &str| wanted == "*" || wanted == given;
        is(self.group, request.group)
            && is(self.resource, request.resource)
            && self.subresources.contains(&request.subresource)
    }
}

const fn on(
    (group, resource, subresources): (&'static str, &'static str, &'static [&'static str]),
    name: &'static str,
    ask: Ask,
) -> Second {
    Second { name, group, resource, subresources, ask }
}

const ITSELF: &[&str] = &[""];
const RBAC: &str = "rbac.authorization.k8s.io";
const POLICIES: &str = "admissionregistration.k8s.io";
const CERTIFICATES: &str = "certificates.k8s.io";
const DEVICES: &str = "resource.k8s.io";

/// All second authorisations, in the order in which a request meets them.
pub static SECOND: &[Second] = &[
    on(("*", "*", ITSELF), "impersonate", Ask::Impersonating),
    on(
        ("", "pods", &["attach", "exec", "portforward"]),
        "create to connect",
        Ask::At(Moment::Connect, create::as_create),
    ),
    on((RBAC, "roles", ITSELF), "escalate a Role", Ask::At(Moment::Write, rbac::may_write_role)),
    on(
        (RBAC, "clusterroles", ITSELF),
        "escalate a ClusterRole",
        Ask::At(Moment::Write, rbac::may_write_role),
    ),
    on(
        (RBAC, "rolebindings", ITSELF),
        "bind in a namespace",
        Ask::At(Moment::Write, rbac::may_write_binding),
    ),
    on(
        (RBAC, "clusterrolebindings", ITSELF),
        "bind in the cluster",
        Ask::At(Moment::Write, rbac::may_write_binding),
    ),
    on(
        (POLICIES, "validatingadmissionpolicies", ITSELF),
        "get all of a ValidatingAdmissionPolicy's paramKind",
        Ask::InValidation(policies::param_kind),
    ),
    on(
        (POLICIES, "mutatingadmissionpolicies", ITSELF),
        "get all of a MutatingAdmissionPolicy's paramKind",
        Ask::InValidation(policies::param_kind),
    ),
    on(
        (POLICIES, "validatingadmissionpolicybindings", ITSELF),
        "read a ValidatingAdmissionPolicyBinding's paramRef",
        Ask::InValidation(policies::param_ref),
    ),
    on(
        (POLICIES, "mutatingadmissionpolicybindings", ITSELF),
        "read a MutatingAdmissionPolicyBinding's paramRef",
        Ask::InValidation(policies::param_ref),
    ),
    on(
        (DEVICES, "resourceclaims", ITSELF),
        "adminAccess of a ResourceClaim",
        Ask::InValidation(claims::admin_access),
    ),
    on(
        (DEVICES, "resourceclaimtemplates", ITSELF),
        "adminAccess of a ResourceClaimTemplate",
        Ask::InValidation(claims::admin_access),
    ),
    on(
        (DEVICES, "resourceclaims", &["status"]),
        "status of a ResourceClaim",
        Ask::InValidation(claims::status),
    ),
    on(("*", "*", ITSELF), "create by update or apply", Ask::At(Moment::Create, create::as_create)),
    on(
        ("", "serviceaccounts", &["token"]),
        "request-serviceaccounts-token-audience",
        Ask::InAdmission("NodeRestriction"),
    ),
    on(
        ("*", "*", ITSELF),
        "update finalizers of an owner, delete what is handed over",
        Ask::InAdmission("OwnerReferencesPermissionEnforcement"),
    ),
    on(
        (CERTIFICATES, "certificatesigningrequests", &["approval"]),
        "approve for a signer",
        Ask::InAdmission("CertificateApproval"),
    ),
    on(
        (CERTIFICATES, "certificatesigningrequests", &["status"]),
        "sign for a signer",
        Ask::InAdmission("CertificateSigning"),
    ),
    on(
        (CERTIFICATES, "clustertrustbundles", ITSELF),
        "attest for a signer",
        Ask::InAdmission("ClusterTrustBundleAttest"),
    ),
];

impl Asked<'_> {
    /// Refuses the request if a row of this moment does.
    pub fn at(&self, moment: Moment) -> Result<(), Status> {
        self.rows().try_for_each(|row| match row.ask {
            Ask::At(when, check) if when == moment => check(self),
            _ => Ok(()),
        })
    }

    /// Adds what rows have against the object to what its validation has.
    pub fn in_validation(&self, errors: &mut ErrorList) {
        for row in self.rows() {
            if let Ask::InValidation(check) = row.ask {
                check(self, errors);
            }
        }
    }

    fn rows(&self) -> impl Iterator<Item = &'static Second> {
        SECOND.iter().filter(|row| row.is_on(self.request))
    }

    /// What the authorisers say of another question of the same user.
    pub(crate) fn allows(&self, question: &Attributes<'_>) -> bool {
        self.authorizer.authorize(question).is_allowed()
    }
}
