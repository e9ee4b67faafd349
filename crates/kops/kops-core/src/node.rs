//! A group's node configuration, which nodeup reads on its machines.

use api_meta::Tree as _;
use kops_api::{Object, yaml};
use serde_json::{Map, Value, json};

use crate::{
    boot::{addresses, asks_kops_controller},
    cluster::{CloudName, Cluster, Dns},
    complete::overlay,
    error::Error,
    files,
    node_inputs::NodeInputs,
};

/// Returns the configuration of a group's machines, as YAML. Both objects must be complete.
pub fn node_config(cluster: &Object, group: &Object, inputs: &NodeInputs) -> Result<String, Error> {
    let (cluster, group) = (&cluster.normalized(), &group.normalized());
    let role = group.spec.text("role");
    let control_plane = role == "ControlPlane";
    let serves = control_plane || role == "APIServer";
    let mut config = base_config(cluster, group, role, inputs)?;
    let part = Part { cluster, group, inputs, control_plane, serves };
    part.networking(&mut config);
    part.cloud(&mut config);
    part.keys(&mut config, role)?;
    if serves {
        part.api_server(&mut config)?;
    }
    if control_plane {
        part.control_plane(&mut config);
    }
    part.files(&mut config, role)?;
    part.extras(&mut config);
    Ok(yaml::to_string(&Value::Object(config)))
}

/// Returns the directory of a group's files in the cluster's directory of the state store, by the role of the group.
pub(crate) fn group_directory(role: &str, group: &str) -> String {
    let role = match role {
        "ControlPlane" => "control-plane".to_owned(),
        role => role.to_ascii_lowercase(),
    };
    format!("igconfig/{role}/{group}")
}

/// Returns the path of a group's node configuration in the cluster's directory of the state store.
pub fn node_config_path(role: &str, group: &str) -> String {
    format!("{}/nodeupconfig.yaml", group_directory(role, group))
}

/// Sets a field unless the value is empty.
fn put(config: &mut Map<String, Value>, name: &str, value: Option<&Value>) {
    let empty = |value: &&Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    if let Some(value) = value.filter(|value| !empty(value)) {
        config.insert(name.to_owned(), value.clone());
    }
}

fn base_config(
    cluster: &Object,
    group: &Object,
    role: &str,
    inputs: &NodeInputs,
) -> Result<Map<String, Value>, Error> {
    let (spec, own) = (&cluster.spec, &group.spec);
    let kubelet = match (&inputs.kubelet, role) {
        // A kubelet is never newer than the API servers that it talks to.
        (Some(version), "Node" | "Bastion") => version.clone(),
        _ => spec.text("kubernetesVersion").to_owned(),
    };
    let gossip = cluster.dns() == Dns::Gossip;
    let hooks = [own, spec].map(|spec| for_role(spec.items("hooks"), role));
    let hooks = hooks.map(|hooks| if hooks.is_empty() { Value::Null } else { hooks.into() });
    let policy = [own, spec].map(|spec| spec.text("updatePolicy"));
    let policy = policy.into_iter().find(|p| !p.is_empty()).unwrap_or("automatic");
    let config = json!({
        "ClusterName": cluster.name(),
        "KubernetesVersion": kubelet,
        "CAs": {}, "KeypairIDs": {}, "Networking": {},
        "KubeletConfig": own.get("kubelet").cloned().unwrap_or_else(|| json!({})),
        "Hooks": hooks,
        "UpdatePolicy": policy,
        "usesLegacyGossip": gossip,
        "usesNoneDNS": cluster.dns() == Dns::None,
    });
    let Value::Object(mut config) = config else { return Ok(Map::new()) };
    let mut assets = Map::new();
    for arch in files::ARCHITECTURES {
        let mut all = files::downloads(cluster, &kubelet, &inputs.hashes, arch)?;
        // Workers without known API addresses resolve names by gossip, which protokube provides.
        let knows_api = !addresses(cluster, group, inputs).is_empty();
        let runs_protokube = role == "ControlPlane" || (gossip && role != "Bastion" && !knows_api);
        if runs_protokube && cluster.cloud() != CloudName::Local {
            all.push(files::kops_program(
                cluster,
                "protokube",
                &inputs.kops,
                &inputs.hashes,
                arch,
            )?);
        }
        assets.insert(arch.to_owned(), all.into());
    }
    config.insert("Assets".to_owned(), assets.into());
    Ok(config)
}

/// Returns the items for a role or for all roles, without their `roles` field.
fn for_role(items: &[Value], role: &str) -> Vec<Value> {
    let applies = |item: &&Value| {
        item.items("roles").is_empty() || item.texts("roles").any(|text| text == role)
    };
    let plain = |item: &Value| {
        let mut item = item.clone();
        item.remove("roles");
        item
    };
    items.iter().filter(applies).map(plain).collect()
}

struct Part<'a> {
    cluster: &'a Object,
    group: &'a Object,
    inputs: &'a NodeInputs,
    control_plane: bool,
    /// `true` if the machines run an API server.
    serves: bool,
}

impl Part<'_> {
    fn networking(&self, config: &mut Map<String, Value>) {
        let spec = &self.cluster.spec;
        let networking = spec.at("networking");
        let mut own = json!({});
        for field in ["nonMasqueradeCIDR", "serviceClusterIPRange"] {
            own.put_some(field, networking.get(field));
        }
        // The Pod network, with the settings that machines need.
        for provider in ["amazonVPC", "calico", "cilium", "flannel", "kubeRouter", "kindnet"] {
            if networking.has(provider) {
                own.put(provider, json!({}));
            }
        }
        own.put_some("calico.wireguardEnabled", networking.opt_at("calico.wireguardEnabled"));
        if networking.flag("cni.usesSecondaryIP") {
            own.put("cni.usesSecondaryIP", true);
        }
        let eni = networking.text("cilium.ipam") == "eni";
        if eni {
            own.put("cilium.ipam", "eni");
        }
        let machine = self.group.spec.text("machineType").split(',').next().unwrap_or_default();
        if eni || networking.has("amazonVPC") {
            config.insert("DefaultMachineType".to_owned(), machine.into());
        }
        let gossip = self.cluster.dns() == Dns::Gossip;
        if self.serves || gossip {
            own.put_some("egressProxy", networking.get("egressProxy"));
        }
        config.insert("Networking".to_owned(), own);
        let etcd = spec.items("etcdClusters").iter().any(|etcd| etcd.text("name") == "cilium");
        for (name, flag) in [
            (
                "UsesKubenet",
                ["kubenet", "gcp", "kopeio", "external"].iter().any(|n| networking.has(n)),
            ),
            ("InstallCNIAssets", files::installs_cni(spec)),
            ("UseCiliumEtcd", networking.has("cilium") && etcd),
            ("NTPUnmanaged", spec.opt_flag("ntp.managed") == Some(false)),
        ] {
            put(config, name, flag.then_some(&Value::Bool(true)));
        }
        put(config, "ServiceNodePortRange", spec.opt_at("kubeAPIServer.serviceNodePortRange"));
        if self.control_plane || gossip {
            put(config, "DNSZone", spec.get("dnsZone"));
        }
        if gossip {
            put(config, "GossipConfig", spec.get("gossipConfig"));
        }
        let isolated = self.control_plane && networking.flag("isolateControlPlane");
        let runs = spec.opt_flag("kubeProxy.enabled") != Some(false) && !isolated;
        let proxy = spec.get("kubeProxy").filter(|_| runs).cloned().unwrap_or_default();
        config.insert("KubeProxy".to_owned(), proxy);
    }

    fn cloud(&self, config: &mut Map<String, Value>) {
        let spec = &self.cluster.spec;
        let from = |cloud: &str, fields: &[&str], config: &mut Map<String, Value>| {
            for field in fields {
                put(config, field, spec.opt_at(&format!("cloudProvider.{cloud}.{field}")));
            }
        };
        if self.serves {
            let fields = [
                "disableSecurityGroupIngress",
                "elbSecurityGroup",
                "nlbSecurityGroupMode",
                "nodeIPFamilies",
            ];
            from("aws", &fields, config);
        }
        from("gce", &["multizone", "nodeTags", "nodeInstancePrefix"], config);
        if self.cluster.cloud() != CloudName::Aws {
            return;
        }
        // The group's warm pool overrides the cluster's; without either there is none.
        let mut pool = spec.at("cloudProvider.aws.warmPool").clone();
        overlay(&mut pool, self.group.spec.at("warmPool"));
        if pool.is_null() || self.control_plane {
            return;
        }
        if pool.flag("enableLifecycleHook") && pool.opt_int("maxSize") != Some(0) {
            config.insert("EnableLifecycleHook".to_owned(), true.into());
        }
        put(config, "warmPoolImages", Some(&json!(self.inputs.warm_images)));
    }

    /// Sets the trusted authorities, and the key pairs to request. Bastions have none.
    fn keys(&self, config: &mut Map<String, Value>, role: &str) -> Result<(), Error> {
        if role == "Bastion" {
            return Ok(());
        }
        let (mut cas, mut ids) = (Map::new(), Map::new());
        let keysets = &self.inputs.keysets;
        let mut load = |name: &str| {
            let remedy = "create keysets before node configurations";
            let keyset = keysets.get(name).ok_or(Error::Unknown {
                what: "keyset",
                name: name.to_owned(),
                remedy,
            })?;
            cas.insert(name.to_owned(), keyset.certificates.clone().into());
            ids.insert(name.to_owned(), keyset.primary_id.clone().into());
            Ok::<_, Error>(())
        };
        load("kubernetes-ca")?;
        if keysets.contains_key("etcd-clients-ca-cilium") {
            load("etcd-clients-ca-cilium")?;
        }
        if self.control_plane {
            load("etcd-clients-ca")?;
            for etcd in self.cluster.spec.items("etcdClusters") {
                let name = etcd.text("name");
                load(&format!("etcd-manager-ca-{name}"))?;
                load(&format!("etcd-peers-ca-{name}"))?;
                if !["main", "events", "leases"].contains(&name) {
                    load(&format!("etcd-clients-ca-{name}"))?;
                }
            }
        }
        if self.serves {
            load("apiserver-aggregator-ca")?;
            if keysets.contains_key("etcd-clients-ca") {
                load("etcd-clients-ca")?;
            }
        }
        let mut requested: Vec<&str> = Vec::new();
        if self.serves {
            requested.push("service-account");
        } else {
            requested.extend(["kubelet", "kube-proxy", "kube-router"]);
        }
        if !self.control_plane {
            requested.push("etcd-client-cilium");
        }
        for (name, keyset) in
            requested.into_iter().filter_map(|name| Some((name, keysets.get(name)?)))
        {
            ids.insert(name.to_owned(), keyset.primary_id.clone().into());
        }
        // Workers get the cluster's authority together with the address of kops-controller.
        if self.configured_by_server() {
            cas.remove("kubernetes-ca");
        }
        config.insert("CAs".to_owned(), cas.into());
        config.insert("KeypairIDs".to_owned(), ids.into());
        Ok(())
    }

    /// Reports whether machines fetch their configuration from kops-controller, and have no access to the store.
    fn configured_by_server(&self) -> bool {
        !self.serves && asks_kops_controller(self.cluster)
    }

    fn api_server(&self, config: &mut Map<String, Value>) -> Result<(), Error> {
        let spec = &self.cluster.spec;
        let mut api = json!({});
        for field in ["publicName", "additionalSANs"] {
            api.put_some(field, spec.opt_at(&format!("api.{field}")));
        }
        if spec.has("api.dns") {
            api.put("dns", json!({}));
        }
        if spec.flag("api.loadBalancer.useForInternalAPI") {
            api.put("loadBalancer.useForInternalAPI", true);
        }
        let remedy = "create keysets before node configurations";
        let name = "service-account".to_owned();
        let signer = self.inputs.keysets.get(&name);
        let signer = signer.ok_or(Error::Unknown { what: "keyset", name, remedy })?;
        let mut own = json!({
            "ClusterDNSDomain": spec.text("clusterDNSDomain"),
            "KubeAPIServer": spec.at("kubeAPIServer").clone(),
            "API": api,
            "ServiceAccountPublicKeys": signer.public_keys,
        });
        if let Some(authentication) = spec.get("authentication") {
            let mut authentication = authentication.clone();
            if authentication.has("aws") {
                // Its settings belong to the add-on.
                authentication.put("aws", json!({}));
            }
            own.put("Authentication", authentication);
        }
        if !self.inputs.encryption_hash.is_empty() {
            own.put("EncryptionConfigSecretHash", self.inputs.encryption_hash.clone());
        }
        config.insert("APIServerConfig".to_owned(), own);
        put(config, "ApiserverAdditionalIPs", Some(&json!(self.inputs.api_addresses)));
        let health = json!([{
            "key": "kube-apiserver-healthcheck", "path": "manifests/static/kube-apiserver-healthcheck.yaml",
        }]);
        config.insert("staticManifests".to_owned(), health);
        Ok(())
    }

    fn control_plane(&self, config: &mut Map<String, Value>) {
        let spec = &self.cluster.spec;
        let base = spec.text("configStore.base").trim_end_matches('/');
        let part = |name: &str| spec.get(name).cloned().unwrap_or_else(|| json!({}));
        let own = json!({
            "KubeControllerManager": part("kubeControllerManager"), "KubeScheduler": part("kubeScheduler"),
        });
        config.insert("ControlPlaneConfig".to_owned(), own);
        let clusters = spec.items("etcdClusters");
        let names: Vec<_> = clusters.iter().map(|etcd| etcd.text("name")).collect();
        put(config, "EtcdClusterNames", Some(&json!(names)));
        let group = self.group.name();
        // In cloud local our own protokube runs etcd, from the machine's own state.
        let managed = clusters.iter().filter(|_| self.cluster.cloud() != CloudName::Local);
        let manifests = managed.flat_map(|etcd| {
            let own = etcd
                .items("etcdMembers")
                .iter()
                .filter(|member| member.text("instanceGroup") == group);
            own.map(|_| format!("{base}/manifests/etcd/{}-{group}.yaml", etcd.text("name")))
        });
        put(config, "etcdManifests", Some(&json!(manifests.collect::<Vec<_>>())));
        let channels = format!("{base}/manifests/channels/kops-channels.yaml");
        config.insert("channelsManifest".to_owned(), channels.into());
    }

    fn files(&self, config: &mut Map<String, Value>, role: &str) -> Result<(), Error> {
        let (spec, own) = (&self.cluster.spec, &self.group.spec);
        let mut files = for_role(own.items("fileAssets"), role);
        files.extend(for_role(spec.items("fileAssets"), role));
        if self.serves {
            files.push(json!({"path": "/var/lib/kube-scheduler/config.yaml", "content": self.inputs.scheduler_config}));
        }
        put(config, "FileAssets", Some(&json!(files)));
        if self.serves || !asks_kops_controller(self.cluster) {
            let store = spec.at("configStore").clone();
            let store =
                json!({"keypairs": store.text("keypairs"), "secrets": store.text("secrets")});
            config.insert("configStore".to_owned(), store);
        }
        Ok(())
    }

    fn extras(&self, config: &mut Map<String, Value>) {
        let (spec, own) = (&self.cluster.spec, &self.group.spec);
        let mut containerd = spec.get("containerd").cloned().unwrap_or_else(|| json!({}));
        overlay(&mut containerd, own.at("containerd"));
        let gvisor = own.flag("containerd.gvisor.enabled");
        if containerd.has("nvidiaGPU") {
            let mut nvidia = containerd.at("nvidiaGPU").clone();
            nvidia.put_default("package", "nvidia-driver-535-server");
            config.insert("NvidiaGPU".to_owned(), nvidia);
        }
        if gvisor {
            let mut own = own.at("containerd.gvisor").clone();
            own.put_default("platform", "systrap");
            config.insert("GVisor".to_owned(), own);
        } else {
            containerd.remove("gvisor");
        }
        config.insert("containerdConfig".to_owned(), containerd);
        put(config, "VolumeMounts", own.get("volumeMounts"));
        let packages = [spec.items("packages"), own.items("packages")].concat();
        put(config, "packages", Some(&packages.into()));
        let mut parameters: Vec<Value> = Vec::new();
        for (spec, of) in [(own, "instance group"), (spec, "cluster")] {
            let lines = spec.items("sysctlParameters");
            if !lines.is_empty() {
                parameters.push(format!("# Custom sysctl parameters from {of} spec").into());
                parameters.push("".into());
                parameters.extend_from_slice(lines);
            }
        }
        put(config, "SysctlParameters", Some(&parameters.into()));
        let service = spec.opt_at("serviceAccountIssuerDiscovery.discoveryService");
        put(config, "discoveryServiceWithUniverse", service);
    }
}
