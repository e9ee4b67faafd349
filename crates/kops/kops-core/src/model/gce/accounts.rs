//! The service accounts of machines, and their roles in the project and on the state store's buckets.

use std::collections::BTreeSet;

use api_meta::Tree as _;
use kops_api::Object;

use super::{
    context::{Context, SCHEMES},
    graph::Model,
    names,
};
use crate::{
    boot::asks_kops_controller,
    error::Error,
    gce::{Kind, Ref, RoleBinding, RoleScope, ServiceAccount},
    model::bucket::{BucketPath, Scheme},
};

/// The role of control planes in the project, as upstream's.
const CONTROL_PLANE_ROLE: &str = "roles/container.serviceAgent";
const READER: &str = "roles/storage.objectViewer";
const WRITER: &str = "roles/storage.objectAdmin";

impl Context<'_> {
    /// Returns the service account of a group's machines.
    pub(super) fn account(&self, group: &Object) -> Ref {
        let name = match group.spec.text("role") {
            _ if self.has_shared_account() => "shared",
            role => Account::of(role).name,
        };
        Ref::new(Kind::ServiceAccount, name)
    }

    /// Reports whether all machines use one existing account.
    fn has_shared_account(&self) -> bool {
        !self.spec.text("cloudProvider.gce.serviceAccount").is_empty()
    }
}

/// The service account of a role.
struct Account {
    name: &'static str,
    description: &'static str,
}

impl Account {
    fn of(role: &str) -> Self {
        let (name, description) = match role {
            "ControlPlane" | "APIServer" => ("control-plane", "kubernetes control-plane instances"),
            "Bastion" => ("bastion", "bastion nodes"),
            _ => ("node", "kubernetes worker nodes"),
        };
        Self { name, description }
    }
}

pub(super) fn add(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    if context.has_shared_account() {
        let email = context.spec.text("cloudProvider.gce.serviceAccount");
        model.add_existing(Ref::new(Kind::ServiceAccount, "shared"), email);
        return Ok(());
    }
    for role in ["ControlPlane", "Node", "Bastion"] {
        let is_of_role =
            |group: &Object| Account::of(group.spec.text("role")).name == Account::of(role).name;
        if context.groups.iter().any(is_of_role) {
            add_account(context, model, role)?;
        }
    }
    Ok(())
}

fn add_account(context: &Context<'_>, model: &mut Model, role: &str) -> Result<(), Error> {
    let Account { name, description } = Account::of(role);
    let project = context.project.to_owned();
    let account = names::account(name, context.name)?;
    let member = model.add(name, ServiceAccount { account, project: project.clone(), description });
    let binding = |scope, role| RoleBinding { scope, role, member: member.clone() };
    if role == "ControlPlane" {
        let body = binding(RoleScope::Project(project), CONTROL_PLANE_ROLE);
        model.add(format!("serviceaccount-{name}"), body);
    }
    let (mut written, mut read) = (BTreeSet::new(), BTreeSet::new());
    if role == "ControlPlane" {
        for etcd in context.spec.items("etcdClusters") {
            written.extend(bucket(etcd.text("backups.backupStore"))?);
        }
    }
    let is_reader = match role {
        "ControlPlane" => true,
        "Node" => !asks_kops_controller(context.cluster),
        _ => false,
    };
    if is_reader {
        read.extend(bucket(context.spec.text("configStore.base"))?);
    }
    let role = role.to_lowercase();
    for bucket in read.difference(&written) {
        let body = binding(RoleScope::Bucket(bucket.clone()), READER);
        model.add(format!("objectviewer-{bucket}-serviceaccount-{role}"), body);
    }
    for bucket in &written {
        let body = binding(RoleScope::Bucket(bucket.clone()), WRITER);
        model.add(format!("objectadmin-{bucket}-serviceaccount-{role}"), body);
    }
    Ok(())
}

/// Returns the bucket of a URL, if it is in Google's Cloud Storage.
fn bucket(url: &str) -> Result<Option<String>, Error> {
    if url.is_empty() {
        return Ok(None);
    }
    let path = BucketPath::parse(url, SCHEMES)?;
    Ok(Some(path.bucket).filter(|_| path.scheme == Scheme::Gs))
}
