//! The inputs shared by all parts of the model: names, tags, subnets, and the API's load balancer.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use data_encoding::HEXLOWER;
use kops_api::Object;
use md_5::{Digest as _, Md5};
use serde_json::Value;

use super::{graph::Model, names};
pub(super) use crate::model::queries::{pairs, text_at};
use crate::{
    aws::{Kind, Ref, SecurityGroup, Tags},
    cluster::{Cluster as _, Dns},
    error::Error,
    model::{
        bucket::{BucketPath, Scheme},
        queries,
    },
    node_inputs::NodeInputs,
    world::{Image, World},
};

/// The inputs of the model, besides the complete cluster and its complete groups.
#[derive(Clone, Debug, Default)]
pub struct AwsInputs {
    /// The inputs of the machines' configurations.
    pub node: NodeInputs,
    /// The existing resources, hashes, account, images and machine types.
    pub world: World,
    /// The public SSH keys for machines, in OpenSSH's format. The first is used.
    pub ssh_keys: Vec<String>,
    /// Manifests of add-ons and the channel that lists them: contents by name below `addons/`. kOps does not generate
    /// them.
    pub addons: BTreeMap<String, String>,
    /// The public keys of service accounts as a JSON Web Key Set, if the spec publishes them.
    pub key_set: String,
}

pub(super) struct Context<'a> {
    /// The complete cluster.
    pub(super) cluster: &'a Object,
    /// The cluster's spec.
    pub(super) spec: &'a Value,
    /// The complete groups.
    pub(super) groups: &'a [Object],
    /// The facts besides the objects.
    pub(super) inputs: &'a AwsInputs,
    /// The cluster's name.
    pub(super) name: &'a str,
    /// The AWS region.
    pub(super) region: String,
    /// The AWS partition, such as `aws-cn`.
    pub(super) partition: String,
}

/// A security group of a role's machines.
pub(super) struct RoleGroup {
    /// The group.
    pub(super) group: Ref,
    /// Its body in the model.
    pub(super) body: SecurityGroup,
    /// The ID, if the group already exists.
    pub(super) existing_id: Option<String>,
}

impl<'a> Context<'a> {
    pub(super) fn new(
        cluster: &'a Object,
        groups: &'a [Object],
        inputs: &'a AwsInputs,
    ) -> Result<Self, Error> {
        let region = cluster.region().ok_or_else(|| Error::Missing {
            field: "spec.subnets[].zone".to_owned(),
            hint: ": the region is that of the subnets",
        })?;
        let partition = match inputs.world.partition.as_str() {
            "" if region.starts_with("cn-") => "aws-cn",
            "" if region.starts_with("us-gov-") => "aws-us-gov",
            "" => "aws",
            name => name,
        };
        Ok(Self {
            cluster,
            spec: &cluster.spec,
            groups,
            inputs,
            name: cluster.name(),
            region: region.to_owned(),
            partition: partition.to_owned(),
        })
    }

    /// Returns the tags of a resource that the cluster owns, or shares with others.
    pub(super) fn tags(&self, name: &str, shared: bool) -> Tags {
        let mut tags = Tags::new();
        let owned = format!("kubernetes.io/cluster/{}", self.name);
        if shared {
            tags.insert(owned, "shared".to_owned());
            return tags;
        }
        if !name.is_empty() {
            tags.insert("Name".to_owned(), name.to_owned());
        }
        tags.insert("KubernetesCluster".to_owned(), self.name.to_owned());
        tags.insert(owned, "owned".to_owned());
        tags.extend(self.labels());
        tags
    }

    /// Returns the user's own tags.
    pub(super) fn labels(&self) -> impl Iterator<Item = (String, String)> + '_ {
        pairs(self.spec.opt_at("cloudLabels"))
    }

    pub(super) fn vpc(&self) -> Ref {
        Ref::new(Kind::Vpc, self.name)
    }

    /// Reports whether the VPC already exists.
    pub(super) fn shares_vpc(&self) -> bool {
        !self.spec.text("networking.networkID").is_empty()
    }

    pub(super) fn subnets(&self) -> &'a [Value] {
        self.spec.items("networking.subnets")
    }

    pub(super) fn subnet(&self, name: &str) -> Ref {
        Ref::new(Kind::Subnet, format!("{name}.{}", self.name))
    }

    /// Returns the subnets of a group.
    pub(super) fn subnets_of(&self, group: &Object) -> Result<Vec<&'a Value>, Error> {
        queries::subnets_of(self.spec, group)
    }

    pub(super) fn of_role(&self, role: &'a str) -> impl Iterator<Item = &'a Object> {
        self.groups.iter().filter(move |group| group.spec.text("role") == role)
    }

    /// Returns `true` for a network load balancer of the API, `false` for a classic one, `None` for none.
    pub(super) fn network_balancer(&self) -> Option<bool> {
        let balancer = self.spec.opt_at("api.loadBalancer")?;
        Some(balancer.text("class") == "Network")
    }

    /// Reports whether the load balancer also forwards to kops-controller.
    pub(super) fn balances_kops_controller(&self) -> bool {
        match self.cluster.dns() {
            Dns::None => true,
            Dns::Gossip => self.network_balancer() == Some(true),
            Dns::Public | Dns::Private => false,
        }
    }

    pub(super) fn cilium_etcd(&self) -> bool {
        queries::has_cilium_etcd(self.spec)
    }

    /// Returns the certificate with which the load balancer terminates TLS.
    pub(super) fn certificate(&self) -> Option<&'a str> {
        let certificate = self.spec.text("api.loadBalancer.sslCertificate");
        Some(certificate).filter(|text| !text.is_empty())
    }

    /// Reports whether Pods have IAM roles of their own.
    pub(super) fn has_pod_roles(&self) -> bool {
        self.spec.flag("iam.useServiceAccountExternalPermissions")
    }

    /// Reports whether the node termination handler reads a queue.
    pub(super) fn has_termination_queue(&self) -> bool {
        let handler = self.spec.opt_at("cloudProvider.aws.nodeTerminationHandler");
        handler.is_some_and(|one| {
            one.flag("enabled") && one.opt_flag("enableSQSTerminationDraining") != Some(false)
        })
    }

    /// Returns the security groups of a role's machines: those named by groups, and the role's own if any group uses
    /// it.
    pub(super) fn role_groups(&self, role: &'a str) -> Vec<RoleGroup> {
        let description = match role {
            "ControlPlane" => "Security group for masters",
            "Bastion" => "Security group for bastion",
            _ => "Security group for nodes",
        };
        let body = SecurityGroup { vpc: self.vpc(), description: description.to_owned() };
        let (mut found, mut all): (Vec<RoleGroup>, _) = (Vec::new(), true);
        for group in self.of_role(role) {
            let id = group.spec.text("securityGroupOverride");
            if id.is_empty() {
                all = false;
            } else if !found.iter().any(|one| one.existing_id.as_deref() == Some(id)) {
                let group = Ref::new(Kind::SecurityGroup, format!("{id}-{role}"));
                found.push(RoleGroup {
                    group,
                    body: body.clone(),
                    existing_id: Some(id.to_owned()),
                });
            }
        }
        if !all {
            let name = names::security_group(self.name, role);
            let group = Ref::new(Kind::SecurityGroup, name);
            found.push(RoleGroup { group, body, existing_id: None });
        }
        found
    }

    /// Adds the security groups of a role.
    pub(super) fn add_role_groups(&self, role: &'a str, model: &mut Model) -> Vec<Ref> {
        let groups = self.role_groups(role).into_iter();
        let add = |one: RoleGroup| match one.existing_id {
            Some(id) => model.add_existing(one.group.name, &id, one.body),
            None => {
                let tags = self.tags(&one.group.name, false);
                model.add(one.group.name, tags, one.body)
            }
        };
        groups.map(add).collect()
    }

    /// Returns the AWS account, which some documents name. `what` is a clause for errors, with the part that needs it.
    pub(super) fn account(&self, what: &str) -> Result<&str, Error> {
        match self.inputs.world.account.as_str() {
            "" => Err(Error::Missing {
                field: "account".to_owned(),
                hint: ": the ID of the AWS account; set it in the table of existing resources",
            }),
            account if account.bytes().all(|byte| byte.is_ascii_digit()) => Ok(account),
            account => {
                Err(Error::value("account", account, format!("is not a number, and {what}")))
            }
        }
    }

    /// Returns the known properties of an image.
    pub(super) fn image(&self, name: &str) -> Result<Image, Error> {
        match self.inputs.world.images.get(name) {
            Some(image) => Ok(image.clone()),
            None => Err(Error::Unknown {
                what: "image",
                name: name.to_owned(),
                remedy: "set its ID and its root device's name in the table of existing resources",
            }),
        }
    }

    /// Parses a URL of the spec as a bucket path.
    pub(super) fn place(&self, url: &str) -> Result<BucketPath, Error> {
        BucketPath::parse(url, &[Scheme::S3])
    }

    /// Returns the name of the machines' SSH key: the cluster's name and the key's fingerprint.
    pub(super) fn ssh_key_name(&self, public: &str) -> Result<String, Error> {
        Ok(format!("kubernetes.{}-{}", self.name, fingerprint(public)?))
    }

    /// Adds a reference to an existing security group.
    pub(super) fn existing_group(&self, model: &mut Model, name: String, id: &str) -> Ref {
        let body = SecurityGroup { vpc: self.vpc(), description: String::new() };
        model.add_existing(name, id, body)
    }
}

/// Returns owned copies of strings.
pub(super) fn owned<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    texts.into_iter().map(str::to_owned).collect()
}

/// Returns a public key's MD5 fingerprint with colons, by which upstream names keys.
pub fn fingerprint(public: &str) -> Result<String, Error> {
    let key = public.split_whitespace().nth(1).and_then(|key| STANDARD.decode(key).ok());
    let key = key.ok_or_else(|| {
        let start: String = public.chars().take(40).collect();
        Error::value("the public key", start, "is not a line in OpenSSH's format")
    })?;
    let sum = HEXLOWER.encode(&Md5::digest(&key));
    let bytes: Vec<_> = sum.as_bytes().chunks(2).map(String::from_utf8_lossy).collect();
    Ok(bytes.join(":"))
}
