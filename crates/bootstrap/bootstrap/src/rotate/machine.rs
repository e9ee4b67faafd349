//! The machine's part in a rotation: its kubeconfigs, certificates and static Pods.

use std::{fs, time::Duration};

use api_config::{
    Kubeconfig,
    kubeconfig::{Cluster, User},
    yaml,
};
use api_meta::Tree as _;
use bootstrap_core::Layout;
use pki::Cert;
use serde_json::Value;

use super::{bundle::pem, cluster::MARK};
use crate::{
    Error, FileChange,
    certs::{self, KUBECONFIGS},
    error::io,
    manifests::write_pod,
    node::Node,
};

/// The time in which the controller manager must sign the kubelet's request.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(200);

const KUBELET: &str = "kubelet.conf";

/// Sets the authorities of every kubeconfig file that trusts one of them.
pub(super) fn trust_authorities(
    layout: &Layout,
    bundle: &[Cert],
) -> Result<Vec<FileChange>, Error> {
    let pem = pem(bundle);
    let mut touched = Vec::new();
    for path in KUBECONFIGS.iter().chain([&KUBELET]).map(|file| layout.kubeconfig(file)) {
        if !path.exists() {
            continue;
        }
        let mut config = Kubeconfig::load(&path)?;
        for named in &mut config.clusters {
            let authorities = named.cluster.ca_pem()?.unwrap_or_default();
            if Cert::all_from_pem(&authorities)?.iter().any(|cert| bundle.contains(cert)) {
                let new = Cluster::with_ca("", &pem);
                named.cluster.certificate_authority_data = new.certificate_authority_data;
                named.cluster.certificate_authority.clear();
            }
        }
        config.write(&path)?;
        touched.push(FileChange::written(path));
    }
    Ok(touched)
}

/// Reissues every certificate of a control plane, including the kubelet's.
pub(super) fn reissue(
    layout: &Layout,
    now: std::time::SystemTime,
) -> Result<Vec<FileChange>, Error> {
    let mut touched = certs::renew_all_with_same_parameters(layout, now)
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    touched.extend(certs::renew_kubelet(layout, now)?);
    Ok(touched)
}

/// Annotates every static Pod with its authorities, so that the kubelet restarts it. Returns the files and the Pods'
/// names.
pub(super) fn mark_pods(
    layout: &Layout,
    mark: &str,
) -> Result<(Vec<FileChange>, Vec<String>), Error> {
    let (dir, mut touched, mut names) = (layout.manifests(), Vec::new(), Vec::new());
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok((touched, names)),
        Err(e) => return Err(io("read the directory", &dir)(e)),
    };
    for entry in entries {
        let path = entry.map_err(io("read the directory", &dir))?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !file.ends_with(".yaml") || file.starts_with('.') {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(io("read", &path))?;
        let mut pod: Value = yaml::parse(&text)?;
        pod.put(&["metadata", "annotations", MARK], mark);
        names.extend(pod.at("metadata.name").as_str().map(str::to_owned));
        touched.push(write_pod(&pod, &dir, &file)?);
    }
    Ok((touched, names))
}

/// Makes the kubelet request a new certificate and waits for one that `authority` has signed. A kubelet that starts
/// with a certificate from its kubeconfig requests one.
pub(super) async fn renew_kubelet(node: &Node, authority: &Cert) -> Result<FileChange, Error> {
    let current = node.layout.kubelet.join("pki/kubelet-client-current.pem");
    let path = node.layout.kubeconfig(KUBELET);
    let is_new = || pki::read_cert(&current).is_ok_and(|c| c.check_signed_by(authority).is_ok());
    if is_new() {
        return Ok(FileChange::used(current));
    }
    let text = fs::read_to_string(&current).map_err(io("read", &current))?;
    let inline = User::with_cert(&text, &text);
    let mut config = Kubeconfig::load(&path)?;
    let previous = config.clone();
    for named in &mut config.users {
        let name = std::mem::take(&mut named.user.client_certificate);
        if !name.is_empty() {
            named.user = inline.clone();
        }
    }
    config.write(&path)?;
    fs::remove_file(&current).map_err(io("remove", &current))?;
    node.service.start().await?;
    if !rt::wait_until(PATIENCE, POLL, is_new).await {
        let cause = if current.exists() {
            previous.write(&path)?;
            "it is signed by the old authority: take this step on every control plane first, then here again"
        } else {
            "the request may wait for approval (kubectl get csr)"
        };
        return Err(Error::NotUp {
            what: "the kubelet's new certificate".to_owned(),
            waited: format!("{}s", PATIENCE.as_secs()),
            cause: format!("{cause}; {}", node.service.last_words()),
        });
    }
    previous.write(&path)?;
    node.service.start().await?;
    Ok(FileChange::written(current))
}
