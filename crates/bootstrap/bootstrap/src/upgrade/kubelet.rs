//! The phase `kubelet-config` of `upgrade`: writes the cluster's kubelet configuration and restarts our kubelet.

use std::fs;

use super::{context::Ctx, control_plane::backup_directory};
use crate::{
    Error, FileChange,
    error::io,
    health::wait_for_kubelet,
    kubelet::config_text,
    node::Node,
    phase::{Outcome, Phase},
};

pub(super) const PHASE: Phase<Ctx> = Phase {
    name: "kubelet-config",
    about: "Upgrade the kubelet configuration for this node",
    run: |ctx| {
        Box::pin(async {
            let node = &ctx.node;
            let text = config_text(node, &node.config.init.node_registration)?;
            if let Some(directory) = &ctx.dry_run {
                let path = directory.join("config.yaml");
                pki::write_file(&path, text.as_bytes(), pki::PUBLIC_MODE)?;
                return Ok(Outcome::Done(vec![FileChange::written(path)]));
            }
            let path = node.layout.kubelet_config();
            let mut touched = back_up(node, &text)?;
            let written = pki::update_file(&path, text.as_bytes(), pki::PUBLIC_MODE)?;
            touched.push(FileChange { path, written });
            // Under systemd, the package manager replaces the kubelet, and its administrator restarts it.
            if !node.host.has_systemd() {
                node.service.start().await?;
                let patience = node.timeouts().kubelet_health_check.unwrap_or_default().to_std();
                wait_for_kubelet(patience, || node.service.last_words()).await?;
            }
            Ok(Outcome::Done(touched))
        })
    },
};

/// Keeps the earlier configuration if it changes.
fn back_up(node: &Node, new: &str) -> Result<Vec<FileChange>, Error> {
    let path = node.layout.kubelet_config();
    let Ok(current) = fs::read_to_string(&path) else { return Ok(Vec::new()) };
    if api_config::yaml::parse(&current)? == api_config::yaml::parse(new)? {
        return Ok(Vec::new());
    }
    let directory = backup_directory(node, "kubeadm-kubelet-config-");
    fs::create_dir_all(&directory).map_err(io("create the directory", &directory))?;
    let backup = directory.join("config.yaml");
    pki::write_file(&backup, current.as_bytes(), pki::KEY_MODE)?;
    println!("[upgrade] Backing up kubelet config file to {:?}", backup.display());
    Ok(vec![FileChange::written(backup)])
}
