//! The DNS configuration of a Pod.

use k8s_openapi::api::core::v1::Pod;

/// The content of a `resolv.conf`, each list in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolver {
    /// The addresses of name servers.
    pub servers: Vec<String>,
    /// The search domains.
    pub searches: Vec<String>,
    /// The resolver options.
    pub options: Vec<String>,
}

/// The limits that common resolvers support.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;

/// Parses a resolv.conf.
pub fn parse(text: &str) -> Resolver {
    let mut resolver = Resolver::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => resolver.servers.extend(words.next().map(|s| s.to_owned())),
            // The last of several `search` lines wins.
            Some("search") => {
                resolver.searches = words
                    .map(|w| w.strip_suffix('.').filter(|w| !w.is_empty()).unwrap_or(w).to_owned())
                    .collect();
            }
            Some("options") => resolver.options = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    resolver
}

/// Returns a Pod's resolver configuration, from its policy, the cluster's DNS and the host's configuration. The second
/// value is `true` if the Pod requests cluster DNS but the cluster has none.
pub fn of_pod(
    pod: &Pod,
    host: &Resolver,
    cluster_dns: &[String],
    domain: &str,
) -> (Resolver, bool) {
    let spec = pod.spec.as_ref();
    let policy = spec.and_then(|s| s.dns_policy.as_deref()).unwrap_or("ClusterFirst");
    let host_network = spec.and_then(|s| s.host_network) == Some(true);
    let mut missing = false;
    let mut resolver = match policy {
        "None" => Resolver::default(),
        "Default" => host.clone(),
        "ClusterFirst" if host_network => host.clone(),
        _ if cluster_dns.is_empty() => {
            missing = true;
            host.clone()
        }
        _ => cluster_first(pod, host, cluster_dns, domain),
    };
    if let Some(custom) = spec.and_then(|s| s.dns_config.as_ref()) {
        add(&mut resolver.servers, custom.nameservers.iter().flatten());
        add(&mut resolver.searches, custom.searches.iter().flatten());
        for option in custom.options.iter().flatten() {
            let Some(name) = &option.name else { continue };
            resolver.options.retain(|o| o.split(':').next() != Some(name));
            resolver.options.push(match option.value.as_deref().filter(|v| !v.is_empty()) {
                Some(value) => format!("{name}:{value}"),
                None => name.clone(),
            });
        }
    }
    apply_limits(&mut resolver);
    (resolver, missing)
}

fn cluster_first(pod: &Pod, host: &Resolver, cluster_dns: &[String], domain: &str) -> Resolver {
    let mut searches = Vec::new();
    if !domain.is_empty() {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        searches.extend([
            format!("{namespace}.svc.{domain}"),
            format!("svc.{domain}"),
            domain.to_owned(),
        ]);
    }
    add(&mut searches, host.searches.iter());
    Resolver { servers: cluster_dns.to_vec(), searches, options: vec!["ndots:5".to_owned()] }
}

fn add<'a>(list: &mut Vec<String>, more: impl Iterator<Item = &'a String>) {
    for one in more {
        if !list.contains(one) {
            list.push(one.clone());
        }
    }
}

fn apply_limits(resolver: &mut Resolver) {
    resolver.servers.truncate(MAX_SERVERS);
    resolver.searches.truncate(MAX_SEARCHES);
    while resolver.searches.iter().map(|s| s.len() + 1).sum::<usize>() > MAX_SEARCH_CHARS + 1 {
        resolver.searches.pop();
    }
}
