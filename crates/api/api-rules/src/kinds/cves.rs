//! Regression tests for published CVEs that validation prevents.

use serde_json::{Value, json};

use super::tests::errors;

fn slice(kind: &str, address: &str) -> String {
    let endpoints = json!([{"addresses": [address]}]);
    let slice = json!({"addressType": kind, "endpoints": endpoints, "ports": []});
    errors("discovery.k8s.io", "endpointslices", slice)
}

fn endpoints(list: &str, address: &str) -> String {
    let mut subset = json!({"ports": [{"port": 80}]});
    subset[list] = json!([{"ip": address}]);
    errors("", "endpoints", json!({"subsets": [subset]}))
}

fn external(address: &str) -> String {
    let spec = json!({"ports": [{"port": 80}], "selector": {"a": "b"}, "externalIPs": [address]});
    errors("", "services", json!({"spec": spec}))
}

/// CVE-2021-25737: endpoints in the node's loopback or link-local range, in any notation.
#[test]
fn cve_2021_25737_rejects_special_endpoint_addresses() {
    let loopback = "may not be in the loopback range (127.0.0.0/8, ::1/128)";
    let link_local = "may not be in the link-local range (169.254.0.0/16, fe80::/10)";
    let multicast = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)";
    let mapped = "must not be an IPv4-mapped IPv6 address";
    for (kind, address, message) in [
        ("IPv4", "127.0.0.1", loopback),
        ("IPv4", "127.255.255.254", loopback),
        ("IPv6", "::1", loopback),
        ("IPv4", "169.254.169.254", link_local),
        ("IPv6", "fe80::1", link_local),
        ("IPv6", "febf::1", link_local),
        ("IPv4", "224.0.0.251", multicast),
        ("IPv6", "ff02::1", multicast),
        ("IPv4", "0.0.0.0", "may not be unspecified (0.0.0.0)"),
        ("IPv6", "::", "may not be unspecified (::)"),
        ("IPv6", "::ffff:127.0.0.1", mapped),
        ("IPv6", "::ffff:7f00:1", mapped),
        ("IPv4", "::ffff:127.0.0.1", mapped),
        ("IPv6", "::ffff:10.1.0.2", mapped),
    ] {
        for found in [
            slice(kind, address),
            endpoints("addresses", address),
            endpoints("notReadyAddresses", address),
            external(address),
        ] {
            assert!(found.ends_with(message), "{address}: {found}");
        }
    }
    for (kind, address) in [("IPv4", "10.1.0.2"), ("IPv6", "fd00::2")] {
        let all = [slice(kind, address), endpoints("addresses", address), external(address)];
        assert_eq!(all, ["[]"; 3], "{address}");
    }
    assert!(slice("IPv4", "fd00::2").ends_with("must be a valid IPv4 address"));
    assert!(slice("IPv6", "10.1.0.2").ends_with("must be a valid IPv6 address"));
}

/// CVE-2021-29923: implementations differ on whether 010.0.0.1 is 8.0.0.1 or 10.0.0.1.
#[test]
fn cve_2021_29923_rejects_leading_zeros() {
    let pod = |spec: Value| {
        let mut all = json!({"containers": [{"name": "c", "image": "i"}]});
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        errors("", "pods", json!({"spec": all}))
    };
    for address in ["010.0.0.1", "10.0.0.01", "127.0.0.001", "0127.0.0.1", "00.0.0.0"] {
        for found in [
            slice("IPv4", address),
            endpoints("addresses", address),
            external(address),
            pod(json!({"hostAliases": [{"ip": address, "hostnames": ["a"]}]})),
            pod(json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": [address]}})),
        ] {
            assert!(found.ends_with("must not have leading 0s"), "{address}: {found}");
        }
    }
    for address in ["10.0.0", "10.0.0.0x1", "10.0.0.256", "0010.0.0.300", "10.0.0.1 ", "a"] {
        let found = slice("IPv4", address);
        assert!(found.contains("must be a valid IP address, (e.g. 10.9.8.7"), "{address}: {found}");
    }
}
