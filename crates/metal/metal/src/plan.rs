//! Plans an enrolment: objects in the cluster, and the config template of the machines.

use api_config::{
    Kubeconfig, KubeletConfiguration,
    kubeconfig::{Cluster, User},
    yaml,
};
use bootstrap_core::constants::NODES_GROUP;
use netboot::matchbox::{BOOTSTRAP_TOKEN, Boot};
use serde_json::{Value, json};

/// The group of the bootstrap tokens. It may create certificate requests, which the controllers do not approve: `metal
/// serve` does.
pub(crate) const BOOTSTRAPPERS: &str = "system:bootstrappers:windlass:metal";
/// The placeholder for the token in the kubeconfig.
const PLACE: &str = "token-comes-here";

const RBAC: &str = "rbac.authorization.k8s.io";

/// Returns the rights of bootstrap tokens and of the resulting nodes.
pub(crate) fn objects() -> [Value; 2] {
    let binding = |name: &str, role: &str, group: &str| {
        json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "Group", "name": group, "apiGroup": RBAC}],
        })
    };
    [
        binding("windlass:metal-bootstrap", "system:node-bootstrapper", BOOTSTRAPPERS),
        binding(
            "windlass:metal-certificate-rotation",
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            NODES_GROUP,
        ),
    ]
}

/// The cluster that machines join.
pub(crate) struct Target {
    pub(crate) server: String,
    pub(crate) ca_pem: String,
    /// The pins of the CA's public keys.
    pub(crate) pins: Vec<String>,
    pub(crate) kubelet: KubeletConfiguration,
}

impl Target {
    /// Returns the group's metadata for this cluster.
    pub(crate) fn metadata(&self) -> Value {
        json!({ "server": self.server, "pins": self.pins })
    }

    /// Returns a Butane template that makes a machine a node. The kubeconfig is written last, because the kubelet waits
    /// for it.
    pub(crate) fn template(&self) -> Result<String, api_config::Error> {
        let cluster = Cluster::with_ca(self.server.as_str(), &self.ca_pem);
        let user = User::with_token(PLACE);
        let bootstrap =
            Kubeconfig::single("kubernetes", cluster, "tls-bootstrap", user).to_yaml()?;
        let secret = format!("{{{{secret `{BOOTSTRAP_TOKEN}`}}}}");
        let kubelet = yaml::to_string(&self.kubelet.to_value()?)?;
        let name = "{{.request.node_name}}";
        let flags = format!("KUBELET_KUBEADM_ARGS=\"--hostname-override={name}\"\n");
        let mut out = "# Written by windlass metal enroll, which writes it anew.\n\
                       variant: fcos\nversion: 1.5.0\nstorage:\n  files:\n"
            .to_owned();
        for (path, mode, text) in [
            ("/etc/hostname", "0644", format!("{name}\n")),
            ("/etc/kubernetes/pki/ca.crt", "0644", self.ca_pem.clone()),
            ("/var/lib/kubelet/config.yaml", "0644", kubelet),
            ("/var/lib/kubelet/kubeadm-flags.env", "0644", flags),
            ("/etc/kubernetes/bootstrap-kubelet.conf", "0600", bootstrap),
        ] {
            // A JSON string is a YAML string on one line.
            let text = Value::from(text).to_string().replace(PLACE, &secret);
            out.push_str(&format!(
                "    - path: {path}\n      mode: {mode}\n      overwrite: true\n      contents:\n        \
                 inline: {text}\n"
            ));
        }
        Ok(out)
    }
}

/// Returns the boot settings of the node image. `image` is the path of its files, `server` the URL of `metal serve`.
pub(crate) fn boot(image: &str, server: &str, install: Option<&str>, more: &[String]) -> Boot {
    let (image, server) = (image.trim_end_matches('/'), server.trim_end_matches('/'));
    let own = "uuid=${uuid}&mac=${mac:hexhyp}&nonce={{.request.nonce}}";
    let initrds = ["initrd.img", "rootfs.img"];
    // A kernel that UEFI firmware starts loads only the initrds on its command line.
    let mut args: Vec<String> = initrds.iter().map(|name| format!("initrd={name}")).collect();
    args.extend([
        "ignition.firstboot".to_owned(),
        "ignition.platform.id=metal".to_owned(),
        format!("ignition.config.url={server}/ignition?{own}"),
        format!("windlass.report={server}/report?{own}"),
    ]);
    args.extend(install.map(|disk| format!("windlass.install={disk}")));
    args.extend_from_slice(more);
    Boot {
        kernel: format!("{image}/vmlinuz"),
        initrd: initrds.iter().map(|name| format!("{image}/{name}")).collect(),
        args,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use netboot::matchbox::{HttpRequest, Matchbox, Settings, Store};

    use super::*;

    #[test]
    fn template_makes_machine_a_node() {
        let kubelet = KubeletConfiguration {
            cluster_domain: "cluster.local".into(),
            ..KubeletConfiguration::default()
        };
        let target = Target {
            server: "https://10.0.0.1:6443".into(),
            ca_pem: "-----BEGIN CERTIFICATE-----\nx\n".into(),
            pins: vec!["sha256:0".into()],
            kubelet,
        };
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("ignition/t", &target.template().unwrap());
        put("profiles/p.json", r#"{"id":"p","ignition_id":"t"}"#);
        let group =
            json!({ "id": "rack", "profile": "p", "metadata": {"cluster": target.metadata()} });
        put("groups/rack.json", &group.to_string());
        put("secrets/rack/bootstrap-token", "abcdef.0123456789abcdef\n");
        let settings = Settings { insecure_secrets: true, ..Settings::default() };
        let matchbox = Matchbox::new(Arc::new(Store::new(dir.path())), settings);
        let request = HttpRequest {
            path: "/ignition".into(),
            query: "mac=52-54-00-00-00-01".into(),
            ..HttpRequest::default()
        };
        let body = matchbox.serve(&request).unwrap().unwrap().body;
        let config: Value = serde_json::from_slice(&body).unwrap();
        let files = config["storage"]["files"].as_array().unwrap();
        let text = |path: &str| {
            let file = files.iter().find(|file| file["path"] == path).unwrap();
            file["contents"]["source"].as_str().unwrap().to_owned()
        };
        assert!(text("/etc/hostname").contains("rack-525400000001"));
        let last = files.last().unwrap();
        assert_eq!(last["path"], "/etc/kubernetes/bootstrap-kubelet.conf");
        assert_eq!(last["mode"], 0o600);
    }

    #[test]
    fn controllers_do_not_approve_bootstrap_tokens() {
        let objects = objects();
        let roles: Vec<_> = objects
            .iter()
            .filter(|object| object["subjects"][0]["name"] == BOOTSTRAPPERS)
            .map(|object| object["roleRef"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(roles, ["system:node-bootstrapper"]);
        assert!(bootstrap_core::tokens::is_bootstrap_group(BOOTSTRAPPERS));
    }

    #[test]
    fn boot_arguments_name_config_and_report_urls() {
        let boot = boot("/assets/node/", "https://b:1/", Some("/dev/vda"), &["quiet".into()]);
        assert_eq!(boot.kernel, "/assets/node/vmlinuz");
        assert_eq!(boot.initrd, ["/assets/node/initrd.img", "/assets/node/rootfs.img"]);
        let line = boot.args.join(" ");
        assert!(line.starts_with("initrd=initrd.img initrd=rootfs.img "), "{line}");
        for part in [
            " ignition.config.url=https://b:1/ignition?uuid=${uuid}&mac=${mac:hexhyp}&nonce={{.request.nonce}} ",
            " windlass.report=https://b:1/report?uuid=${uuid}&mac=${mac:hexhyp}&nonce={{.request.nonce}} ",
            " windlass.install=/dev/vda quiet",
        ] {
            assert!(line.contains(part), "{line}");
        }
    }
}
