//! Secondary authorization: the checks of upstream's API server besides the one in the filter chain.
//!
//! [`SECONDARY_CHECKS`] lists all of them. Handlers do not know the rows: at each [`Moment`] of a request they call
//! [`AuthorizedRequest::at`], which runs the rows for the resource. Admission plugins and impersonation run their rows
//! themselves, because a flag can disable a plugin and impersonation precedes the handler. These rows are listed for
//! completeness.

mod certificates;
mod claims;
mod create;
mod escalation;
mod policies;
mod request;
#[cfg(test)]
mod tests;

use api_meta::{Attributes, ErrorList, Status};

pub use self::request::AuthorizedRequest;

/// The point in a request at which handlers run checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before a connection is forwarded to a kubelet.
    Connect,
    /// Before an object is validated, after admission has changed it.
    Write,
    /// Before validating admission of a new object.
    Create,
}

/// The caller of a check, and the kind of its result.
#[derive(Clone, Copy)]
pub enum CheckSite {
    /// Run by a handler. A rejection is the response.
    At(Moment, fn(&AuthorizedRequest<'_>) -> Result<(), Status>),
    /// Run by a handler with the validation of an object. A rejection is a field error.
    InValidation(fn(&AuthorizedRequest<'_>, &mut ErrorList)),
    /// Run by the admission plugin of this name.
    InAdmission(&'static str),
    /// Run by `authn::impersonation`.
    Impersonating,
}

/// A row of the list.
pub struct SecondaryCheck {
    /// The required permission, in Kubernetes' words.
    pub name: &'static str,
    /// The API group; `*` for all.
    pub group: &'static str,
    /// The resource; `*` for all.
    pub resource: &'static str,
    /// The subresources; an empty string means the resource itself.
    pub subresources: &'static [&'static str],
    /// The caller of the check.
    pub ask: CheckSite,
}

impl SecondaryCheck {
    fn is_on(&self, request: &Attributes<'_>) -> bool {
        let is = |wanted: &str, given: &str| wanted == "*" || wanted == given;
        is(self.group, request.group)
            && is(self.resource, request.resource)
            && self.subresources.contains(&request.subresource)
    }
}

const fn on(
    group: &'static str,
    resource: &'static str,
    subresources: &'static [&'static str],
    name: &'static str,
    ask: CheckSite,
) -> SecondaryCheck {
    SecondaryCheck { name, group, resource, subresources, ask }
}

const ITSELF: &[&str] = &[""];
const RBAC: &str = "rbac.authorization.k8s.io";
const POLICIES: &str = "admissionregistration.k8s.io";
const CERTIFICATES: &str = "certificates.k8s.io";
const DEVICES: &str = "resource.k8s.io";

/// All secondary authorization checks, in the order in which a request meets them.
pub static SECONDARY_CHECKS: &[SecondaryCheck] = &[
    on("*", "*", ITSELF, "impersonate", CheckSite::Impersonating),
    on(
        "",
        "pods",
        &["attach", "exec", "portforward"],
        "create to connect",
        CheckSite::At(Moment::Connect, create::as_create),
    ),
    on(
        RBAC,
        "roles",
        ITSELF,
        "escalate a Role",
        CheckSite::At(Moment::Write, escalation::authorize_role),
    ),
    on(
        RBAC,
        "clusterroles",
        ITSELF,
        "escalate a ClusterRole",
        CheckSite::At(Moment::Write, escalation::authorize_role),
    ),
    on(
        RBAC,
        "rolebindings",
        ITSELF,
        "bind in a namespace",
        CheckSite::At(Moment::Write, escalation::authorize_binding),
    ),
    on(
        RBAC,
        "clusterrolebindings",
        ITSELF,
        "bind in the cluster",
        CheckSite::At(Moment::Write, escalation::authorize_binding),
    ),
    on(
        POLICIES,
        "validatingadmissionpolicies",
        ITSELF,
        "get all of a ValidatingAdmissionPolicy's paramKind",
        CheckSite::InValidation(policies::validate_param_kind),
    ),
    on(
        POLICIES,
        "mutatingadmissionpolicies",
        ITSELF,
        "get all of a MutatingAdmissionPolicy's paramKind",
        CheckSite::InValidation(policies::validate_param_kind),
    ),
    on(
        POLICIES,
        "validatingadmissionpolicybindings",
        ITSELF,
        "read a ValidatingAdmissionPolicyBinding's paramRef",
        CheckSite::InValidation(policies::validate_param_ref),
    ),
    on(
        POLICIES,
        "mutatingadmissionpolicybindings",
        ITSELF,
        "read a MutatingAdmissionPolicyBinding's paramRef",
        CheckSite::InValidation(policies::validate_param_ref),
    ),
    on(
        DEVICES,
        "resourceclaims",
        ITSELF,
        "adminAccess of a ResourceClaim",
        CheckSite::InValidation(claims::validate_admin_access),
    ),
    on(
        DEVICES,
        "resourceclaimtemplates",
        ITSELF,
        "adminAccess of a ResourceClaimTemplate",
        CheckSite::InValidation(claims::validate_admin_access),
    ),
    on(
        DEVICES,
        "resourceclaims",
        &["status"],
        "status of a ResourceClaim",
        CheckSite::InValidation(claims::validate_status),
    ),
    on(
        "*",
        "*",
        ITSELF,
        "create by update or apply",
        CheckSite::At(Moment::Create, create::as_create),
    ),
    on(
        "",
        "serviceaccounts",
        &["token"],
        "request-serviceaccounts-token-audience",
        CheckSite::InAdmission("NodeRestriction"),
    ),
    on(
        "*",
        "*",
        ITSELF,
        "update finalizers of an owner, delete what is handed over",
        CheckSite::InAdmission("OwnerReferencesPermissionEnforcement"),
    ),
    on(
        CERTIFICATES,
        "certificatesigningrequests",
        &["approval"],
        "approve for a signer",
        CheckSite::InAdmission("CertificateApproval"),
    ),
    on(
        CERTIFICATES,
        "certificatesigningrequests",
        &["status"],
        "sign for a signer",
        CheckSite::InAdmission("CertificateSigning"),
    ),
    on(
        CERTIFICATES,
        "podcertificaterequests",
        &["status"],
        "sign for a signer of Pods",
        CheckSite::InValidation(certificates::validate_signing),
    ),
    on(
        CERTIFICATES,
        "clustertrustbundles",
        ITSELF,
        "attest for a signer",
        CheckSite::InAdmission("ClusterTrustBundleAttest"),
    ),
];

impl AuthorizedRequest<'_> {
    /// Returns an error if a row of this moment rejects the request.
    pub fn at(&self, moment: Moment) -> Result<(), Status> {
        self.rows().try_for_each(|row| match row.ask {
            CheckSite::At(when, check) if when == moment => check(self),
            _ => Ok(()),
        })
    }

    /// Adds the field errors of rows to the errors of the object's validation.
    pub fn validate(&self, errors: &mut ErrorList) {
        for row in self.rows() {
            if let CheckSite::InValidation(check) = row.ask {
                check(self, errors);
            }
        }
    }

    fn rows(&self) -> impl Iterator<Item = &'static SecondaryCheck> {
        SECONDARY_CHECKS.iter().filter(|row| row.is_on(self.request))
    }
}
