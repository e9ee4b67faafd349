//! The files that machines download: their URLs and hashes.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use kops_api::Object;
use serde_json::Value;

use crate::{
    cluster::{CloudName, Cluster},
    error::Error,
    version::Version,
};

/// The supported architectures.
pub(crate) const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

const CNI_131: &str = "1.5.1";
const CNI: &str = "1.6.2";
const CRICTL: &str = "1.29.0";
const NERDCTL: &str = "1.7.4";
const AWS: &str = "https://artifacts.k8s.io/binaries/cloud-provider-aws/v1.31.7";
const GCP: &str = "https://artifacts.k8s.io/binaries/cloud-provider-gcp/v35.0.0";

/// SHA-256 sums by URL, in hexadecimal. They come from the projects' releases.
pub type Hashes = BTreeMap<String, String>;

/// Returns the downloads of a group's machines, as `HASH@URL`.
pub(crate) fn downloads(
    cluster: &Object,
    kubelet: &str,
    hashes: &Hashes,
    arch: &str,
) -> Result<Vec<String>, Error> {
    if cluster.cloud() == CloudName::Local {
        // Its machines run the given local programs; the caller knows their URLs and hashes.
        return Ok(hashes.iter().map(|(url, hash)| format!("{hash}@{url}")).collect());
    }
    let version: Version = kubelet.parse()?;
    let mut found = Vec::new();
    let mut add = |url: String| {
        found.push(asset(&cluster.spec, &[url], hashes)?);
        Ok::<_, Error>(())
    };
    for program in ["kubelet", "kubectl"] {
        add(format!("https://dl.k8s.io/release/v{version}/bin/linux/{arch}/{program}"))?;
    }
    let spec = &cluster.spec;
    let location =
        |cloud: &str| spec.at(&format!("cloudProvider.{cloud}.binariesLocation")).as_str();
    match cluster.cloud() {
        CloudName::Aws => {
            let base = location("aws").unwrap_or(AWS);
            add(format!("{base}/linux/{arch}/ecr-credential-provider-linux-{arch}"))?;
        }
        CloudName::Gce => {
            let base = location("gce").unwrap_or(GCP);
            add(format!("{base}/auth-provider-gcp/linux/{arch}/auth-provider-gcp"))?;
        }
        _ => {}
    }
    if installs_cni(spec) {
        let cni = if version.is_before(32) { CNI_131 } else { CNI };
        let base = "https://github.com/containernetworking/plugins/releases/download";
        add(format!("{base}/v{cni}/cni-plugins-linux-{arch}-v{cni}.tgz"))?;
    }
    if !spec.flag("containerd.skipInstall") {
        found.extend(runtime(spec, hashes, arch)?);
    }
    Ok(found)
}

/// Reports whether CNI plugins are installed. These networks bring their own.
pub(crate) fn installs_cni(spec: &Value) -> bool {
    !["amazonVPC", "calico", "cilium"].iter().any(|n| spec.has(&format!("networking.{n}")))
}

fn runtime(spec: &Value, hashes: &Hashes, arch: &str) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    let base = "https://github.com";
    let suffix = if arch == "amd64" { "Amd64" } else { "Arm64" };
    for (path, url) in [
        (
            "containerd",
            format!(
                "{base}/containerd/containerd/releases/download/v{{}}/containerd-{{}}-linux-{arch}.tar.gz"
            ),
        ),
        (
            "containerd.runc",
            format!("{base}/opencontainers/runc/releases/download/v{{}}/runc.{arch}"),
        ),
    ] {
        let own = |field: &str| spec.text(&format!("{path}.packages.{field}{suffix}")).to_owned();
        let (at, hash) = (own("url"), own("hash"));
        if !at.is_empty() && !hash.is_empty() {
            let hashes = [(at.clone(), hash)].into();
            found.push(asset(spec, &[at], &hashes)?);
        } else {
            let version = spec.text(&format!("{path}.version")).trim_start_matches('v').to_owned();
            found.push(asset(spec, &[url.replace("{}", &version)], hashes)?);
        }
    }
    if spec.flag("containerd.installNerdctl") {
        let url = format!(
            "{base}/containerd/nerdctl/releases/download/v{NERDCTL}/nerdctl-{NERDCTL}-linux-{arch}.tar.gz"
        );
        found.push(asset(spec, &[url], hashes)?);
    }
    if spec.flag("containerd.installCriCtl") {
        let url = format!(
            "{base}/kubernetes-sigs/cri-tools/releases/download/v{CRICTL}/crictl-v{CRICTL}-linux-{arch}.tar.gz"
        );
        found.push(asset(spec, &[url], hashes)?);
    }
    Ok(found)
}

/// Returns a program of kOps itself, which has two mirrors.
pub(crate) fn kops_program(
    cluster: &Object,
    program: &str,
    kops: &str,
    hashes: &Hashes,
    arch: &str,
) -> Result<String, Error> {
    let urls = [
        format!("https://artifacts.k8s.io/binaries/kops/{kops}/linux/{arch}/{program}"),
        format!(
            "https://github.com/kubernetes/kops/releases/download/v{kops}/{program}-linux-{arch}"
        ),
    ];
    asset(&cluster.spec, &urls, hashes)
}

/// Returns a file as its hash and URLs. A custom file repository replaces all hosts.
fn asset(spec: &Value, urls: &[String], hashes: &Hashes) -> Result<String, Error> {
    let remedy = "its hash must be known, so that a machine runs nothing else";
    let name = urls.first().cloned().unwrap_or_default();
    let hash = hashes.get(&name).ok_or(Error::Unknown { what: "file", name, remedy })?;
    let moved = urls.iter().map(|url| match spec.at("assets.fileRepository").as_str() {
        Some(repository) => {
            let path = url.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
            format!("{}/{}", repository.trim_end_matches('/'), path.map_or("", |(_, path)| path))
        }
        None => url.clone(),
    });
    Ok(format!("{hash}@{}", moved.collect::<Vec<_>>().join(",")))
}
