//! What every part of the model asks of the cluster: names, tags, subnets, who stands before the API.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use data_encoding::HEXLOWER;
use kops_api::{Object, Spec};
use md_5::{Digest as _, Md5};
use serde_json::{Map, Value};

use super::{
    graph::Model,
    names,
    resource::{Body, Kind, Ref, Tags},
};
use crate::{Cluster as _, Dns, Error, Image, NodeInputs, World};

/// What the model is made from, beside the complete cluster and its complete groups.
#[derive(Clone, Debug, Default)]
pub struct AwsInputs {
    /// What machines' configurations are made from.
    pub node: NodeInputs,
    /// What is there already, with which hashes, account, images and machine types.
    pub world: World,
    /// The public keys that machines are reached with, as OpenSSH writes them. The first is used.
    pub ssh_keys: Vec<String>,
    /// Manifests of add-ons and the channel that lists them: names below `addons/`, and contents. They are never made here.
    pub addons: BTreeMap<String, String>,
    /// The public keys that sign for service accounts, as a JSON Web Key Set, where the spec has them published.
    pub key_set: String,
}

/// A place in a bucket that one of the spec's URLs means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) bucket: String,
    /// The beginning of its keys, without slashes at its ends.
    pub(super) prefix: String,
}

pub(super) struct Context<'a> {
    pub(super) cluster: &'a Object,
    pub(super) spec: &'a Value,
    pub(super) groups: &'a [Object],
    pub(super) inputs: &'a AwsInputs,
    pub(super) name: &'a str,
    pub(super) region: String,
    pub(super) partition: String,
}

/// A security group that a role's machines are in, and whether it is one of a group's own.
pub(super) struct RoleGroup {
    pub(super) group: Ref,
    pub(super) body: Body,
    /// The id, of one that is there already.
    pub(super) given: Option<String>,
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
            given => given,
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

    /// Tags of what the cluster makes, or shares with others.
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

    /// The user's own tags.
    pub(super) fn labels(&self) -> impl Iterator<Item = (String, String)> + '_ {
        pairs(self.spec.at("cloudLabels"))
    }

    pub(super) fn vpc(&self) -> Ref {
        Ref::new(Kind::Vpc, self.name)
    }

    /// Whether the VPC is there already.
    pub(super) fn shares_vpc(&self) -> bool {
        !self.spec.text("networking.networkID").is_empty()
    }

    pub(super) fn subnets(&self) -> &'a [Value] {
        self.spec.list("networking.subnets")
    }

    pub(super) fn subnet(&self, name: &str) -> Ref {
        Ref::new(Kind::Subnet, format!("{name}.{}", self.name))
    }

    /// The subnets that a group names, which the spec was checked to have.
    pub(super) fn subnets_of(&self, group: &Object) -> Result<Vec<&'a Value>, Error> {
        let names = group.spec.texts("subnets");
        let find = |name: &str| {
            let found = self.subnets().iter().find(|subnet| subnet.text("name") == name);
            found.ok_or_else(|| Error::Unknown {
                what: "subnet",
                name: name.to_owned(),
                remedy: "spec.subnets of the cluster names those that there are",
            })
        };
        let found = names.into_iter().map(find).collect::<Result<Vec<_>, _>>()?;
        match found.is_empty() {
            true => Err(Error::Missing {
                field: format!("spec.subnets of instance group {}", group.name()),
                hint: "",
            }),
            false => Ok(found),
        }
    }

    pub(super) fn of_role(&self, role: &'a str) -> impl Iterator<Item = &'a Object> {
        self.groups.iter().filter(move |group| group.spec.text("role") == role)
    }

    /// Whether there is a network load balancer before the API; nothing if there is none at all.
    pub(super) fn network_balancer(&self) -> Option<bool> {
        let balancer = self.spec.at("api.loadBalancer")?;
        Some(balancer.text("class") == "Network")
    }

    /// Whether the balancer also passes kops-controller on.
    pub(super) fn balances_kops_controller(&self) -> bool {
        match self.cluster.dns() {
            Dns::None => true,
            Dns::Gossip => self.network_balancer() == Some(true),
            Dns::Public | Dns::Private => false,
        }
    }

    pub(super) fn cilium_etcd(&self) -> bool {
        let managed = |etcd: &Value| etcd.text("name") == "cilium";
        self.spec.has("networking.cilium") && self.spec.list("etcdClusters").iter().any(managed)
    }

    /// Whether the load balancer ends TLS on its own.
    pub(super) fn certificate(&self) -> Option<&'a str> {
        let certificate = self.spec.text("api.loadBalancer.sslCertificate");
        Some(certificate).filter(|text| !text.is_empty())
    }

    /// Whether Pods have roles of their own.
    pub(super) fn has_pod_roles(&self) -> bool {
        self.spec.is("iam.useServiceAccountExternalPermissions")
    }

    /// Whether the termination handler is told by a queue.
    pub(super) fn hears_terminations(&self) -> bool {
        let handler = self.spec.at("cloudProvider.aws.nodeTerminationHandler");
        handler.is_some_and(|one| {
            one.is("enabled") && one.flag("enableSQSTerminationDraining") != Some(false)
        })
    }

    /// The security groups of a role's machines: those that groups name, and the role's own if a group is left for it.
    pub(super) fn role_groups(&self, role: &'a str) -> Vec<RoleGroup> {
        let description = match role {
            "ControlPlane" => "Security group for masters",
            "Bastion" => "Security group for bastion",
            _ => "Security group for nodes",
        };
        let body = Body::SecurityGroup { vpc: self.vpc(), description: description.to_owned() };
        let (mut found, mut all): (Vec<RoleGroup>, _) = (Vec::new(), true);
        for group in self.of_role(role) {
            let id = group.spec.text("securityGroupOverride");
            if id.is_empty() {
                all = false;
            } else if !found.iter().any(|one| one.given.as_deref() == Some(id)) {
                let group = Ref::new(Kind::SecurityGroup, format!("{id}-{role}"));
                found.push(RoleGroup { group, body: body.clone(), given: Some(id.to_owned()) });
            }
        }
        if !all {
            let name = names::security_group(self.name, role);
            let group = Ref::new(Kind::SecurityGroup, name);
            found.push(RoleGroup { group, body, given: None });
        }
        found
    }

    /// Adds the security groups of a role.
    pub(super) fn add_role_groups(&self, role: &'a str, model: &mut Model) -> Vec<Ref> {
        let groups = self.role_groups(role).into_iter();
        let add = |one: RoleGroup| match one.given {
            Some(id) => model.given(one.group.name, &id, one.body),
            None => {
                let tags = self.tags(&one.group.name, false);
                model.add(one.group.name, tags, one.body)
            }
        };
        groups.map(add).collect()
    }

    /// The account in AWS, which some documents name.
    pub(super) fn account(&self, what: &str) -> Result<&str, Error> {
        match self.inputs.world.account.as_str() {
            "" => Err(Error::Missing {
                field: "account".to_owned(),
                hint: ": the id of the account in AWS; say it in the table of what is there",
            }),
            account if account.bytes().all(|byte| byte.is_ascii_digit()) => Ok(account),
            account => Err(Error::value("account", account, format!("is no number, and {what}"))),
        }
    }

    /// What is known of an image.
    pub(super) fn image(&self, name: &str) -> Result<Image, Error> {
        match self.inputs.world.images.get(name) {
            Some(image) => Ok(image.clone()),
            None => Err(Error::Unknown {
                what: "image",
                name: name.to_owned(),
                remedy: "say its id and its first disk's name in the table of what is there",
            }),
        }
    }

    /// The place that a URL of the spec means.
    pub(super) fn place(&self, url: &str) -> Result<Place, Error> {
        let path = url.strip_prefix("s3://").filter(|path| !path.is_empty());
        let path = path.ok_or_else(|| {
            let reason = "is no bucket as s3://BUCKET/PATH, and machines in AWS read nothing else";
            Error::value("spec.configStore", url, reason)
        })?;
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        Ok(Place { bucket: bucket.to_owned(), prefix: prefix.trim_matches('/').to_owned() })
    }

    /// The name of the key that machines are reached with: the cluster's, and the key's fingerprint.
    pub(super) fn ssh_key_name(&self, public: &str) -> Result<String, Error> {
        Ok(format!("kubernetes.{}-{}", self.name, fingerprint(public)?))
    }

    /// A security group that is there already.
    pub(super) fn given_group(&self, model: &mut Model, name: String, id: &str) -> Ref {
        let body = Body::SecurityGroup { vpc: self.vpc(), description: String::new() };
        model.given(name, id, body)
    }
}

/// A map's strings.
pub(super) fn pairs(map: Option<&Value>) -> impl Iterator<Item = (String, String)> + '_ {
    let members = map.and_then(Value::as_object).into_iter().flat_map(Map::iter);
    members.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
}

/// The strings of a list, as they are kept.
pub(super) fn owned(texts: Vec<&str>) -> Vec<String> {
    texts.into_iter().map(str::to_owned).collect()
}

/// A text that says something.
pub(super) fn said(spec: &Value, path: &str) -> Option<String> {
    Some(spec.text(path).to_owned()).filter(|text| !text.is_empty())
}

/// A public key's fingerprint as OpenSSH wrote it once, and as upstream names keys by it: MD5, with colons.
pub fn fingerprint(public: &str) -> Result<String, Error> {
    let key = public.split_whitespace().nth(1).and_then(|key| STANDARD.decode(key).ok());
    let key = key.ok_or_else(|| {
        let start: String = public.chars().take(40).collect();
        Error::value("the public key", start, "is no line as OpenSSH writes it")
    })?;
    let sum = HEXLOWER.encode(&Md5::digest(&key));
    let bytes: Vec<_> = sum.as_bytes().chunks(2).map(String::from_utf8_lossy).collect();
    Ok(bytes.join(":"))
}
