//! A Pod's host name and its `/etc/hosts`.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::Pod;

const MAX_NAME_LENGTH: usize = 63;

/// Returns a Pod's host name, and its domain if the Pod has a subdomain.
pub fn names(pod: &Pod, domain: &str) -> (String, Option<String>) {
    let spec = pod.spec.as_ref();
    let over = spec.and_then(|s| s.hostname_override.as_deref()).filter(|h| !h.is_empty());
    if let Some(name) = over {
        return (name.to_owned(), None);
    }
    let hostname = spec.and_then(|s| s.hostname.as_deref()).filter(|h| !h.is_empty());
    let name = hostname.unwrap_or(pod.metadata.name.as_deref().unwrap_or_default());
    let end = name.len().min(MAX_NAME_LENGTH);
    // A shortened name must not end with a separator.
    let name = name.get(..end).unwrap_or(name).trim_end_matches(['-', '.']).to_owned();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let subdomain = spec.and_then(|s| s.subdomain.as_deref()).filter(|s| !s.is_empty());
    (name, subdomain.map(|s| format!("{s}.{namespace}.svc.{domain}")))
}

/// Returns the sandbox's host name: the fully qualified one if the Pod requests that.
pub fn sandbox_hostname(pod: &Pod, domain: &str) -> String {
    let (name, tail) = names(pod, domain);
    let long = pod.spec.as_ref().and_then(|s| s.set_hostname_as_fqdn) == Some(true);
    match tail {
        Some(tail) if long => format!("{name}.{tail}"),
        _ => name,
    }
}

/// Returns the content of the containers' `/etc/hosts`.
pub fn file(pod: &Pod, ips: &[String], domain: &str, of_host: Option<&str>) -> String {
    let mut out = match of_host {
        Some(host) => format!("# Kubernetes-managed hosts file (host network).\n{host}"),
        None => {
            let mut out = String::from("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n");
            out.push_str("::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n");
            out.push_str(
                "fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
            );
            let (name, tail) = names(pod, domain);
            for ip in ips {
                let _ = match &tail {
                    Some(tail) => writeln!(out, "{ip}\t{name}.{tail}\t{name}"),
                    None => writeln!(out, "{ip}\t{name}"),
                };
            }
            out
        }
    };
    let aliases = pod.spec.iter().flat_map(|s| s.host_aliases.iter().flatten());
    let lines: Vec<String> = aliases
        .map(|a| format!("{}\t{}\n", a.ip, a.hostnames.as_deref().unwrap_or_default().join("\t")))
        .collect();
    if !lines.is_empty() {
        out.push_str("\n# Entries added by HostAliases.\n");
        out.push_str(&lines.concat());
    }
    out
}
