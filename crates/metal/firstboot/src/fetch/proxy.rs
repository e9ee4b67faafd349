//! Selects the proxy of a request.

use std::net::IpAddr;

use http::Uri;
use ignition::spec::Proxy;

#[derive(Clone, Debug, Default)]
pub(crate) struct Proxies {
    http: Option<String>,
    https: Option<String>,
    none: Vec<String>,
}

impl Proxies {
    /// Returns the config's proxies, with defaults from the environment.
    pub(crate) fn new(proxy: &Proxy) -> Self {
        let environment = |name: &str| {
            let value = std::env::var(name).or_else(|_| std::env::var(name.to_ascii_lowercase()));
            value.ok().filter(|value| !value.is_empty())
        };
        let list = environment("NO_PROXY").unwrap_or_default();
        let none = if proxy.no_proxy.is_empty() {
            list.split(',').map(|item| item.trim().to_owned()).collect()
        } else {
            proxy.no_proxy.clone()
        };
        let http = proxy.http_proxy.clone().or_else(|| environment("HTTP_PROXY"));
        let https = proxy.https_proxy.clone().or_else(|| environment("HTTPS_PROXY"));
        Self { https: https.or_else(|| proxy.http_proxy.clone()), http, none }
    }

    pub(crate) fn for_url(&self, url: &Uri) -> Option<&str> {
        let host = url.host()?.trim_matches(['[', ']']);
        let secure = url.scheme_str() == Some("https");
        let port = url.port_u16().unwrap_or(if secure { 443 } else { 80 });
        if self.none.iter().any(|rule| is_excepted(rule, host, port)) {
            return None;
        }
        let chosen = if secure { &self.https } else { &self.http };
        chosen.as_deref().filter(|proxy| !proxy.is_empty())
    }
}

fn is_excepted(rule: &str, host: &str, port: u16) -> bool {
    if rule == "*" {
        return true;
    }
    if let (Some((network, bits)), Ok(address)) = (rule.split_once('/'), host.parse()) {
        return bits
            .parse()
            .is_ok_and(|bits| network.parse().is_ok_and(|net| is_within(address, net, bits)));
    }
    let (name, rule_port) = match rule.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() && !name.contains(':') => {
            (name, port.parse().ok())
        }
        _ => (rule, None),
    };
    if name.is_empty() || rule_port.is_some_and(|rule_port: u16| rule_port != port) {
        return false;
    }
    let (host, name) = (host.to_ascii_lowercase(), name.to_ascii_lowercase());
    match name.strip_prefix('.') {
        Some(_) => host.ends_with(&name),
        None => host == name || host.ends_with(&format!(".{name}")),
    }
}

fn is_within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    let prefix =
        |value: u128, width: u32| value.checked_shr(width.saturating_sub(bits)).unwrap_or(0);
    match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(n)) => {
            prefix(a.to_bits().into(), 32) == prefix(n.to_bits().into(), 32)
        }
        (IpAddr::V6(a), IpAddr::V6(n)) => prefix(a.to_bits(), 128) == prefix(n.to_bits(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_proxy_by_scheme_and_exception() {
        let proxies = Proxies::new(&Proxy {
            http_proxy: Some("http://p:1".into()),
            https_proxy: None,
            no_proxy: ["foo.com", ".y.com", "10.0.0.0/8", "h:81", "1.2.3.4"]
                .map(str::to_owned)
                .to_vec(),
        });
        for (url, want) in [
            ("http://a/", true),
            ("https://a/", true),
            ("http://foo.com/", false),
            ("http://bar.foo.com/", false),
            ("http://xfoo.com/", true),
            ("http://y.com/", true),
            ("http://x.y.com/", false),
            ("http://10.1.2.3/", false),
            ("http://11.1.2.3/", true),
            ("http://h:81/", false),
            ("http://h/", true),
            ("http://1.2.3.4/", false),
        ] {
            assert_eq!(proxies.for_url(&url.parse().unwrap()).is_some(), want, "{url}");
        }
    }
}
