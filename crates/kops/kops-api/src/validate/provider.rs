//! Validates the cluster's cloud, and the constraints of each cloud.

use api_meta::{ErrorList, FieldError, Tree as _};
use serde_json::Value;

use super::{
    paths::spec,
    values::{is_set, parse_version},
};
use crate::object::Object;

/// The label that names the cloud of a cluster without a cloud provider: metal or local.
pub const CLOUD_LABEL: &str = "alpha.kops.k8s.io/cloud";

/// The rule of a cloud for `networkCIDR`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NetworkRange {
    Required,
    Optional,
    Prohibited,
}

/// A cloud and the fields that it requires or prohibits.
#[derive(Clone, Copy)]
pub(super) struct Provider {
    /// The name, as in `spec.cloudProvider.NAME`.
    pub(super) name: &'static str,
    /// The value of `--cloud-provider` of the components, if the cloud has one.
    component: Option<&'static str>,
    /// `true` if the cluster must have subnets.
    pub(super) needs_subnets: bool,
    /// `true` if subnets must have a range.
    pub(super) needs_subnet_range: bool,
    /// `true` if subnets must have a region.
    pub(super) needs_subnet_region: bool,
    /// The rule for `networkCIDR`.
    pub(super) network_range: NetworkRange,
    /// `true` if additional networks are allowed.
    pub(super) several_networks: bool,
    /// `true` if `nonMasqueradeCIDR` is required.
    pub(super) needs_non_masquerade: bool,
    /// Kinds of `topology.dns`; empty if every kind is possible.
    dns: &'static [&'static str],
}

const STRICTEST: Provider = Provider {
    name: "",
    component: None,
    needs_subnets: true,
    needs_subnet_range: true,
    needs_subnet_region: false,
    network_range: NetworkRange::Required,
    several_networks: false,
    needs_non_masquerade: true,
    dns: &[],
};

const ALL_DNS: &[&str] = &["None", "Gossip", "Public", "Private"];

/// The clouds in upstream's order.
const PROVIDERS: [Provider; 8] = [
    Provider {
        name: "aws",
        component: Some("aws"),
        several_networks: true,
        dns: ALL_DNS,
        ..STRICTEST
    },
    Provider {
        name: "azure",
        component: Some("azure"),
        needs_subnet_region: true,
        dns: &["None", "Gossip"],
        ..STRICTEST
    },
    Provider {
        name: "do",
        component: Some("external"),
        needs_subnets: false,
        needs_subnet_range: false,
        needs_subnet_region: true,
        network_range: NetworkRange::Optional,
        dns: &["None", "Gossip", "Public"],
        ..STRICTEST
    },
    Provider {
        name: "gce",
        component: Some("gce"),
        needs_subnet_range: false,
        needs_subnet_region: true,
        network_range: NetworkRange::Prohibited,
        needs_non_masquerade: false,
        dns: ALL_DNS,
        ..STRICTEST
    },
    Provider {
        name: "hetzner",
        component: Some("external"),
        needs_subnets: false,
        needs_subnet_range: false,
        network_range: NetworkRange::Optional,
        dns: &["None", "Gossip"],
        ..STRICTEST
    },
    Provider {
        name: "openstack",
        component: Some("openstack"),
        needs_subnet_range: false,
        network_range: NetworkRange::Optional,
        dns: ALL_DNS,
        ..STRICTEST
    },
    Provider {
        name: "scaleway",
        component: Some("external"),
        needs_subnet_range: false,
        network_range: NetworkRange::Optional,
        dns: &["None", "Gossip", "Public"],
        ..STRICTEST
    },
    Provider {
        name: "linode",
        component: Some("external"),
        needs_subnets: false,
        needs_subnet_range: false,
        needs_subnet_region: true,
        network_range: NetworkRange::Optional,
        dns: &["None"],
        ..STRICTEST
    },
];

const METAL: Provider = Provider {
    name: "metal",
    needs_subnet_range: false,
    network_range: NetworkRange::Optional,
    dns: &["None"],
    ..STRICTEST
};

/// Machines on this host, which upstream does not have.
const LOCAL: Provider = Provider { name: "local", needs_subnets: false, dns: &[], ..METAL };

const NONE: Provider = Provider {
    needs_subnets: false,
    needs_subnet_range: false,
    network_range: NetworkRange::Optional,
    ..STRICTEST
};

impl Provider {
    /// Returns the cloud of a cluster. If the cluster names none, returns one without a name and with the fewest
    /// constraints.
    pub(super) fn of(cluster: &Object) -> Self {
        let label = cluster.metadata.at(&["labels", CLOUD_LABEL]);
        match label.as_str() {
            Some("metal") => METAL,
            Some("local") => LOCAL,
            _ => named(cluster).next().unwrap_or(NONE),
        }
    }

    pub(super) fn is(&self, name: &str) -> bool {
        self.name == name
    }
}

fn named(cluster: &Object) -> impl Iterator<Item = Provider> {
    let clouds = cluster.spec.get("cloudProvider");
    let has = move |provider: &Provider| clouds.is_some_and(|clouds| clouds.has(provider.name));
    PROVIDERS.into_iter().filter(has)
}

/// Validates that a cluster names one cloud, and that its components' settings fit that cloud.
pub(super) fn validate(cluster: &Object, errors: &mut ErrorList) {
    let (tree, provider) = (&cluster.spec, Provider::of(cluster));
    let at = spec("cloudProvider");
    if provider.name.is_empty() {
        errors.push(FieldError::required(&at, ""));
    }
    let others = named(cluster).filter(|other| other.name != provider.name);
    for other in others {
        let detail = "only one cloudProvider option permitted";
        errors.push(FieldError::forbidden(&at.child(other.name), detail));
    }
    validate_components(tree, &provider, errors);
    validate_dns(cluster, &provider, errors);
    if !provider.is("aws") {
        validate_aws_only(tree, errors);
    }
    for (number, subnet) in tree.items("networking.subnets").iter().enumerate() {
        let at = spec("networking.subnets").index(number);
        let zone = subnet.text("zone");
        if provider.is("gce") && !zone.is_empty() {
            let detail =
                "zones should not be specified for GCE subnets, as GCE subnets are regional";
            errors.push(FieldError::invalid(&at.child("zone"), zone, detail));
        }
        let external = tree.has("cloudProvider.openstack.router.externalNetwork");
        if provider.is("openstack") && !external && subnet.text("type") == "Public" {
            let detail = "subnet type Public requires an external network";
            errors.push(FieldError::forbidden(&at.child("type"), detail));
        }
    }
}

/// The last version of Kubernetes whose API server has a cloud provider.
const LAST_WITH_SERVER_PROVIDER: [u64; 2] = [1, 32];

fn validate_components(tree: &Value, provider: &Provider, errors: &mut ErrorList) {
    let Some(word) = provider.component else { return };
    let kubernetes = parse_version(tree.text("kubernetesVersion"));
    let server = kubernetes.is_some_and(|v| v[..2] <= LAST_WITH_SERVER_PROVIDER[..]);
    let components = ["kubelet", "controlPlaneKubelet", "kubeControllerManager"];
    for component in components.into_iter().chain(server.then_some("kubeAPIServer")) {
        let field = format!("{component}.cloudProvider");
        if !["", "external", word].contains(&tree.text(&field)) {
            let detail = "Did not match cluster cloudProvider";
            errors.push(FieldError::forbidden(&spec(&field), detail));
        }
    }
}

fn validate_dns(cluster: &Object, provider: &Provider, errors: &mut ErrorList) {
    let tree = &cluster.spec;
    if provider.dns.is_empty() || !tree.has("networking.topology") {
        return;
    }
    let kind = match tree.text("networking.topology.dns") {
        "None" => "None",
        _ if cluster.name().ends_with(".k8s.local") => "Gossip",
        "" => "Public",
        kind => kind,
    };
    if !provider.dns.contains(&kind) && ALL_DNS.contains(&kind) {
        let kind = kind.to_ascii_lowercase();
        let detail =
            format!("cloud provider {:?} does not support {kind} dns topology", provider.name);
        errors.push(FieldError::forbidden(&spec("networking.topology.dns"), detail));
    }
}

/// Rejects settings that only AWS has.
fn validate_aws_only(tree: &Value, errors: &mut ErrorList) {
    let at = spec("api.loadBalancer");
    let balancer = tree.at("api.loadBalancer");
    for field in [
        "class",
        "idleTimeoutSeconds",
        "securityGroupOverride",
        "additionalSecurityGroups",
        "sslCertificate",
        "sslPolicy",
        "crossZoneLoadBalancing",
        "accessLog",
    ] {
        if is_set(balancer.at(field)) {
            let detail = format!("{field} is only supported on AWS");
            errors.push(FieldError::forbidden(&at.child(field), detail));
        }
    }
    for field in ["sshAccess", "api.access", "nodePortAccess"] {
        for (number, text) in tree.texts(field).enumerate() {
            if text.starts_with("pl-") {
                let detail = "Prefix List ID only supported for AWS";
                errors.push(FieldError::invalid(&spec(field).index(number), text, detail));
            }
        }
    }
}
