//! kube-proxy as a static Pod.

use api_meta::Tree as _;
use serde_json::json;

use super::{
    context::{Context, KUBELET_UNIT},
    flags::flags,
    pod::{NODE_CRITICAL, Pod, add_manifest},
    task::Tasks,
};
use crate::error::Error;

const NAME: &str = "kube-proxy";
const KUBECONFIG: &str = "/var/lib/kube-proxy/kubeconfig";

pub(super) fn build(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    let mut config = context.config.at("KubeProxy").clone();
    if config.is_null() {
        return Ok(());
    }
    if config.blank("master") {
        let api = if context.control_plane { "127.0.0.1".to_owned() } else { context.api_name() };
        config.put("master", format!("https://{api}"));
    }
    config.set_default("conntrackMaxPerCore", 131_072);
    let mut all = flags(NAME, &config);
    all.push(format!("--kubeconfig={KUBECONFIG}"));
    all.push("--oom-score-adj=-998".to_owned());
    all.sort();
    let mut pod = Pod::new(context, NAME, &config, all)
        .with_resources(&config, "100m")
        .write("logfile", "/var/log/kube-proxy.log")
        .read("kubeconfig", "/var/lib/kube-proxy")
        .read("modules", "/lib/modules")
        .mount("ssl-certs-hosts", "/usr/share/ca-certificates", "/etc/ssl/certs", true);
    if context.config.flag("usesLegacyGossip") {
        pod = pod.read("etchosts", "/etc/hosts");
    }
    pod = pod.write("iptableslock", "/run/xtables.lock");
    if let Some(volume) = pod.volumes.last_mut() {
        volume.put("hostPath.type", "FileOrCreate");
    }
    pod.container.put("securityContext.privileged", true);
    let mut tree = pod.build(context, NODE_CRITICAL);
    let labels = json!({"k8s-app": NAME, "kubernetes.io/managed-by": "nodeup", "tier": "node"});
    tree.put("metadata.labels", labels);
    add_manifest(tasks, NAME, &tree)?;
    let content = context.kubeconfig(tasks, NAME, "system:kube-proxy", &[])?;
    context.kubeconfig_file(tasks, KUBECONFIG, content, &[KUBELET_UNIT])?;
    tasks.log_file(NAME)
}
