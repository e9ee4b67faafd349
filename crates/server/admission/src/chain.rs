//! The chain of plugins: all upstream plugins in their order, and those that are enabled.

use std::{collections::BTreeMap, error::Error};

use api_meta::Status;
use serde_json::Value;

use crate::{
    configuration::ConfigurationError,
    plugins::{self as p, default_toleration_seconds::DefaultTolerationSeconds},
    request::{Outcome, Plugin, Request},
};

/// The implementation status of an upstream admission plugin.
#[derive(Clone, Copy)]
pub enum Presence {
    Here(fn() -> Box<dyn Plugin>),
    /// The plugin, built from its part of `--admission-control-config-file`; null without one.
    Configured(fn(&Value) -> Result<Box<dyn Plugin>, ConfigurationError>),
    /// The plugin calls out or evaluates expressions, so the API server runs it in a phase of its own: mutating plugins
    /// after [`Chain::mutate`], validating ones after [`Chain::validate`].
    Pipeline,
    /// The upstream plugin acts only behind a feature gate that is off by default and that this server does not have.
    /// It can be enabled and does nothing.
    Gated,
}

/// An upstream plugin and its default state.
pub struct PluginInfo {
    /// The name in `--enable-admission-plugins` and `--disable-admission-plugins`.
    pub name: &'static str,
    /// `true` if the plugin is on unless a flag disables it.
    pub on_by_default: bool,
    /// The implementation of the plugin.
    pub presence: Presence,
}

const fn here(
    name: &'static str,
    on_by_default: bool,
    make: fn() -> Box<dyn Plugin>,
) -> PluginInfo {
    PluginInfo { name, on_by_default, presence: Presence::Here(make) }
}

const fn configured(
    name: &'static str,
    on_by_default: bool,
    make: fn(&Value) -> Result<Box<dyn Plugin>, ConfigurationError>,
) -> PluginInfo {
    PluginInfo { name, on_by_default, presence: Presence::Configured(make) }
}

const fn other(name: &'static str, on_by_default: bool, presence: Presence) -> PluginInfo {
    PluginInfo { name, on_by_default, presence }
}

const DEFAULT_TOLERATIONS: &str = "DefaultTolerationSeconds";

/// Every upstream plugin, in the order in which the plugins run.
pub static PLUGINS: &[PluginInfo] = &[
    here("AlwaysAdmit", false, || Box::new(p::always_deny::AlwaysAdmit)),
    other("NamespaceAutoProvision", false, Presence::Pipeline),
    here("NamespaceLifecycle", true, || Box::new(p::namespace_lifecycle::NamespaceLifecycle)),
    here("NamespaceExists", false, || Box::new(p::namespace_exists::NamespaceExists)),
    here("LimitPodHardAntiAffinityTopology", false, || {
        Box::new(p::limit_pod_hard_anti_affinity_topology::LimitPodHardAntiAffinityTopology)
    }),
    here("LimitRanger", true, || Box::new(p::limit_ranger::LimitRanger)),
    here("ServiceAccount", true, || Box::new(p::service_account::ServiceAccount)),
    here("NodeRestriction", false, || Box::new(p::node_restriction::NodeRestriction)),
    here("TaintNodesByCondition", true, || {
        Box::new(p::taint_nodes_by_condition::TaintNodesByCondition)
    }),
    here("AlwaysPullImages", false, || Box::new(p::always_pull_images::AlwaysPullImages)),
    other("ImagePolicyWebhook", false, Presence::Pipeline),
    configured("PodSecurity", true, |configuration| {
        Ok(Box::new(p::pod_security::PodSecurity::configured(configuration)?))
    }),
    configured("PodNodeSelector", false, |configuration| {
        Ok(Box::new(p::pod_node_selector::PodNodeSelector::configured(configuration)?))
    }),
    here("Priority", true, || Box::new(p::priority::Priority)),
    here(DEFAULT_TOLERATIONS, true, || Box::new(DefaultTolerationSeconds::default())),
    configured("PodTolerationRestriction", false, |configuration| {
        let plugin = p::pod_toleration_restriction::PodTolerationRestriction::configured;
        Ok(Box::new(plugin(configuration)?))
    }),
    configured("EventRateLimit", false, |configuration| {
        Ok(Box::new(p::event_rate_limit::EventRateLimit::configured(configuration)?))
    }),
    here("ExtendedResourceToleration", false, || {
        Box::new(p::extended_resource_toleration::ExtendedResourceToleration)
    }),
    here("DefaultStorageClass", true, || Box::new(p::default_storage_class::DefaultStorageClass)),
    here("StorageObjectInUseProtection", true, || {
        Box::new(p::storage_object_in_use_protection::StorageObjectInUseProtection)
    }),
    here("PodGroupProtection", true, || Box::new(p::pod_group::PodGroupProtection)),
    here("OwnerReferencesPermissionEnforcement", false, || {
        Box::new(p::owner_references_permission_enforcement::OwnerReferencesPermissionEnforcement)
    }),
    here("PersistentVolumeClaimResize", true, || {
        Box::new(p::persistent_volume_claim_resize::PersistentVolumeClaimResize)
    }),
    here("RuntimeClass", true, || Box::new(p::runtime_class::RuntimeClass)),
    here("CertificateApproval", true, || Box::new(p::signers::CertificateApproval)),
    here("CertificateSigning", true, || Box::new(p::signers::CertificateSigning)),
    here("ClusterTrustBundleAttest", true, || Box::new(p::signers::ClusterTrustBundleAttest)),
    here("CertificateSubjectRestriction", true, || {
        Box::new(p::signers::CertificateSubjectRestriction)
    }),
    here("DefaultIngressClass", true, || Box::new(p::default_ingress_class::DefaultIngressClass)),
    here("DenyServiceExternalIPs", false, || {
        Box::new(p::deny_service_external_ips::DenyServiceExternalIPs)
    }),
    here("PodTopologyLabels", true, || Box::new(p::pod_topology_labels::PodTopologyLabels)),
    here("PodGroupWorkloadExists", true, || Box::new(p::pod_group::PodGroupWorkloadExists)),
    here("NodeDeclaredFeatureValidator", true, || {
        Box::new(p::node_declared_feature_validator::NodeDeclaredFeatureValidator)
    }),
    other("JobValidation", true, Presence::Gated),
    here("PodResizeValidator", true, || Box::new(p::pod_resize_validator::PodResizeValidator)),
    other("MutatingAdmissionPolicy", true, Presence::Pipeline),
    other("MutatingAdmissionWebhook", true, Presence::Pipeline),
    other("ValidatingAdmissionPolicy", true, Presence::Pipeline),
    other("ValidatingAdmissionWebhook", true, Presence::Pipeline),
    configured("ResourceQuota", true, |configuration| {
        Ok(Box::new(p::resource_quota::ResourceQuota::configured(configuration)?))
    }),
    here("AlwaysDeny", false, || Box::new(p::always_deny::AlwaysDeny)),
];

/// An invalid flag or configuration of admission. The server does not start.
#[derive(Debug, thiserror::Error)]
pub enum UnknownPlugin {
    #[error("--{flag}-admission-plugins names {name}, which is not an admission plugin")]
    Unknown { flag: &'static str, name: String },
    #[error(
        "{0} is in both --enable-admission-plugins and --disable-admission-plugins; remove it from one of them"
    )]
    Both(String),
    #[error("couldn't init admission plugin {name:?}: {source}")]
    Configuration { name: String, source: Box<dyn Error + Send + Sync> },
}

/// The enabled plugins, in the order in which they run.
pub struct Chain {
    plugins: Vec<NamedPlugin>,
    names: Vec<&'static str>,
}

struct NamedPlugin {
    name: &'static str,
    plugin: Box<dyn Plugin>,
}

/// Is called after each plugin with its position in [`Chain::plugin_names`], and `true` if it rejected the request. The
/// chain has no clock: the caller measures the time.
pub type PluginDone<'a> = dyn FnMut(usize, bool) + 'a;

impl Chain {
    /// Builds the chain from the default plugins, plus `enable`, minus `disable`.
    pub fn new<S: AsRef<str>>(enable: &[S], disable: &[S]) -> Result<Self, UnknownPlugin> {
        Self::configured(enable, disable, &BTreeMap::new())
    }

    /// Builds the chain with an `AdmissionConfiguration`: by plugin name, the object under `configuration` or in the
    /// file that `path` names.
    pub fn configured<S: AsRef<str>>(
        enable: &[S],
        disable: &[S],
        configuration: &BTreeMap<String, Value>,
    ) -> Result<Self, UnknownPlugin> {
        let names = |list: &[S]| -> Vec<String> {
            list.iter().map(|s| s.as_ref().trim().to_owned()).collect()
        };
        let (enable, disable) = (names(enable), names(disable));
        for (flag, list) in [("enable", &enable), ("disable", &disable)] {
            for name in list {
                if PLUGINS.iter().all(|plugin| plugin.name != name) {
                    return Err(UnknownPlugin::Unknown { flag, name: name.clone() });
                }
            }
        }
        if let Some(both) = enable.iter().find(|name| disable.contains(name)) {
            return Err(UnknownPlugin::Both(both.clone()));
        }
        let listed = |list: &[String], name: &str| list.iter().any(|n| n == name);
        let on = |p: &&PluginInfo| {
            (p.on_by_default || listed(&enable, p.name)) && !listed(&disable, p.name)
        };
        let (mut plugins, mut names) = (Vec::new(), Vec::new());
        for plugin in PLUGINS.iter().filter(on) {
            names.push(plugin.name);
            match plugin.presence {
                Presence::Here(make) => {
                    plugins.push(NamedPlugin { name: plugin.name, plugin: make() });
                }
                Presence::Configured(make) => {
                    let made = make(configuration.get(plugin.name).unwrap_or(&Value::Null));
                    let made = made.map_err(|error| UnknownPlugin::Configuration {
                        name: plugin.name.into(),
                        source: error.into(),
                    })?;
                    plugins.push(NamedPlugin { name: plugin.name, plugin: made });
                }
                Presence::Pipeline | Presence::Gated => {}
            }
        }
        Ok(Self { plugins, names })
    }

    /// Reports whether a plugin is enabled, including plugins that the API server runs itself.
    pub fn is_on(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    /// Returns the names of the enabled plugins, in the order in which they run.
    pub fn names(&self) -> &[&'static str] {
        &self.names
    }

    /// Returns the names of the plugins that the chain itself runs, in their order.
    pub fn plugin_names(&self) -> impl Iterator<Item = &'static str> {
        self.plugins.iter().map(|plugin| plugin.name)
    }

    /// Sets the seconds of the plugin DefaultTolerationSeconds, if it is enabled.
    pub fn with_default_tolerations(mut self, seconds: DefaultTolerationSeconds) -> Self {
        for named in self.plugins.iter_mut().filter(|named| named.name == DEFAULT_TOLERATIONS) {
            named.plugin = Box::new(seconds);
        }
        self
    }

    /// Appends a plugin after the upstream ones.
    pub fn and(mut self, plugin: impl Plugin + 'static) -> Self {
        self.plugins.push(NamedPlugin { name: "custom", plugin: Box::new(plugin) });
        self
    }

    /// Runs the first phase: each plugin may reject the request or change the object. Returns `true` if a plugin may
    /// have changed it.
    pub fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        done: &mut PluginDone<'_>,
    ) -> Result<bool, Status> {
        let mut changed = false;
        for (at, NamedPlugin { plugin, .. }) in self.plugins.iter().enumerate() {
            let mut result = plugin.precheck(request, object);
            if result.is_ok() && plugin.mutates(request) {
                result = plugin.mutate(request, object);
                changed = true;
            }
            done(at, result.is_err());
            result?;
        }
        Ok(changed)
    }

    /// Runs the second phase: each plugin validates the final object.
    pub fn validate(
        &self,
        request: &Request<'_>,
        object: &Value,
        outcome: &mut Outcome,
        done: &mut PluginDone<'_>,
    ) -> Result<(), Status> {
        self.plugins.iter().enumerate().try_for_each(|(at, NamedPlugin { plugin, .. })| {
            let result = plugin.validate(request, object, outcome);
            done(at, result.is_err());
            result
        })
    }

    /// Runs the last phase and returns the ResourceQuotas with the usage that the request adds. The caller writes their
    /// status, each at its resourceVersion, before the object. On a conflict the caller runs this phase again.
    pub fn charge(&self, request: &Request<'_>, object: &Value) -> Result<Vec<Value>, Status> {
        let mut quotas = Vec::new();
        for NamedPlugin { plugin, .. } in &self.plugins {
            quotas.extend(plugin.charge(request, object)?);
        }
        Ok(quotas)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use api_meta::GroupResource;
    use api_meta::Tree as _;
    use serde_json::json;

    use super::*;
    use crate::{
        request::AdmissionResult,
        testing::{Cluster, Try, pod},
    };

    impl Plugin for Chain {
        fn mutates(&self, _: &Request<'_>) -> bool {
            true
        }

        fn mutate(&self, request: &Request<'_>, object: &mut Value) -> AdmissionResult {
            Chain::mutate(self, request, object, &mut |_, _| ()).map(drop)
        }
    }

    #[test]
    fn reports_possible_changes_of_objects() {
        let cluster = Cluster::default()
            .with(&GroupResource::NAMESPACES, json!({"metadata": {"name": "ns"}}))
            .with(
                &GroupResource::SERVICE_ACCOUNTS,
                json!({"metadata": {"name": "default", "namespace": "ns"}}),
            );
        let chain = Chain::new::<&str>(&[], &[]).unwrap();
        let changes = |request: Try<'_>, object: &Value| {
            request.asked(object, |request, object| {
                chain.mutate(request, &mut object.clone(), &mut |_, _| ())
            })
        };
        let object = pod(json!({"containers": [{"name": "c"}]}));
        let pods = || Try::create(&cluster, &GroupResource::PODS);
        assert_eq!(changes(pods(), &object), Ok(true));
        let updated = || Try::update(&cluster, &GroupResource::PODS, object.clone());
        assert_eq!(changes(updated(), &object), Ok(true));
        assert_eq!(changes(updated().sub("status"), &object), Ok(false));
        for resource in [GroupResource::new("", "configmaps"), GroupResource::new("a.io", "bs")] {
            assert_eq!(
                changes(Try::create(&cluster, &resource), &object),
                Ok(false),
                "{resource:?}"
            );
        }
    }

    #[test]
    fn flags_enable_and_disable_plugins() {
        let chain =
            |enable: &[&str], disable: &[&str]| Chain::new(enable, disable).map(|c| c.names);
        let usual = chain(&[], &[]).unwrap();
        assert!(usual.contains(&"Priority") && !usual.contains(&"NodeRestriction"));
        let ours = chain(&["NodeRestriction"], &["Priority"]).unwrap();
        assert!(!ours.contains(&"Priority") && ours.contains(&"NodeRestriction"));
        let at = |name| ours.iter().position(|n| *n == name);
        assert!(at("ServiceAccount") < at("NodeRestriction"), "the order is the table's");
        assert!(matches!(
            chain(&["Nonsense"], &[]),
            Err(UnknownPlugin::Unknown { flag: "enable", name }) if name == "Nonsense"
        ));
        assert!(chain(&["Priority"], &["Priority"]).is_err());
    }

    /// Removes the defaults from Pods that an upstream server admitted, and checks that the chain adds the same ones.
    /// Skipped without the recorded Pods.
    #[test]
    fn restores_defaults_of_recorded_pods() {
        let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/reference");
        let root = std::env::var_os("WINDLASS_REFERENCE").map_or(beside, PathBuf::from);
        let Ok(text) = std::fs::read_to_string(root.join("golden/defaulting/defaulted.yaml"))
        else {
            eprintln!("skipped: no reference at hand; set WINDLASS_REFERENCE");
            return;
        };
        let objects =
            text.split("\n---\n").filter_map(|doc| serde_saphyr::from_str::<Value>(doc).ok());
        let pods: Vec<Value> = objects.filter(|o| o["kind"] == "Pod").collect();
        assert!(!pods.is_empty());
        for recorded in pods {
            let mut pod = recorded.clone();
            for field in [
                "tolerations",
                "priority",
                "preemptionPolicy",
                "serviceAccount",
                "serviceAccountName",
            ] {
                pod["spec"].as_object_mut().unwrap().remove(field);
            }
            let ours = |entry: &Value| {
                entry["name"].as_str().is_some_and(|n| n.starts_with("kube-api-access-"))
            };
            let drop_ours = |holder: &mut Value, field: &str| {
                let Some(list) = holder[field].as_array_mut() else { return };
                list.retain(|entry| !ours(entry));
                if list.is_empty() {
                    holder.as_object_mut().unwrap().remove(field);
                }
            };
            drop_ours(&mut pod["spec"], "volumes");
            for list in ["spec.containers", "spec.initContainers"] {
                pod.items_mut(list).for_each(|c| drop_ours(c, "volumeMounts"));
            }
            let namespace = recorded["metadata"]["namespace"].as_str().unwrap();
            let account = json!({"metadata": {"name": "default", "namespace": namespace}});
            let cluster = Cluster::default()
                .with(&GroupResource::NAMESPACES, json!({"metadata": {"name": namespace}}))
                .with(&GroupResource::SERVICE_ACCOUNTS, account);
            let made = Try::create(&cluster, &GroupResource::PODS)
                .admitted(&Chain::new::<&str>(&[], &[]).unwrap(), pod);
            // The suffix of the volume's name is random.
            let plain = |pod: &Value| {
                let text = pod["spec"].to_string();
                let mut parts = text.split("kube-api-access-");
                let first = parts.next().unwrap().to_owned();
                parts.fold(first, |text, part| text + "kube-api-access-" + &part[5..])
            };
            assert_eq!(plain(&made), plain(&recorded));
        }
    }
}
