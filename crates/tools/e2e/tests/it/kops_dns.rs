//! kOps with the cloud `local`, whose names a BIND serves.

use std::fs;

use e2e::{Background, Kops, lock_machine, until_within};

/// The address of the DNS server, on the host side of the machines' network.
const SERVER: &str = "198.51.100.53";

/// A Service whose name has the addresses of the workers.
const SERVICE: &str = "apiVersion: v1
kind: Service
metadata:
  name: web
  annotations: {dns.alpha.kubernetes.io/internal: NAME}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80}]}
";

/// Starts a BIND that serves the cluster's name as a zone, and permits updates with a key. Returns it and the key.
fn serve_zone(kops: &Kops) -> (Background, String) {
    let directory = kops.cluster.directory.join("bind");
    fs::create_dir_all(&directory).unwrap();
    let (path, zone) = (directory.display(), &kops.name);
    let key = "key \"dns\" { algorithm hmac-sha256; secret \"c2VjcmV0c2VjcmV0\"; };\n";
    let server = format!(
        "{key}options {{ directory \"{path}\"; listen-on {{ {SERVER}; }}; listen-on-v6 {{ none; }}; pid-file none; \
         session-keyfile none; recursion no; dnssec-validation no; notify no; }};\ncontrols {{ }};\nzone \"{zone}\" \
         {{ type primary; file \"zone\"; allow-update {{ key \"dns\"; }}; }};\n"
    );
    let records = "$TTL 60\n@ SOA ns admin 1 3600 600 86400 60\n@ NS ns\nns A 198.51.100.53\n";
    fs::write(directory.join("named.conf"), server).unwrap();
    fs::write(directory.join("zone"), records).unwrap();
    fs::write(directory.join("tsig.key"), key).unwrap();
    kops.cluster.run("ip", &["address", "add", &format!("{SERVER}/32"), "dev", "lo"]).ok();
    let configuration = format!("{path}/named.conf");
    let server = kops.cluster.command("named", &["-f", "-4", "-n", "1", "-c", &configuration]);
    (Background::start(server), format!("{path}/tsig.key"))
}

/// Waits until a name has this number of addresses.
#[track_caller]
fn wait_for_addresses(kops: &Kops, name: &str, count: usize) -> Vec<String> {
    let at = format!("@{SERVER}");
    let name = format!("{name}.{}", kops.name);
    until_within(std::time::Duration::from_secs(180), &format!("addresses of {name}"), || {
        let found = kops.cluster.run("dig", &["+short", "+time=1", &at, &name]);
        let addresses: Vec<_> = found.stdout.lines().map(str::to_owned).collect();
        if addresses.len() == count { Ok(addresses) } else { Err(found.stdout) }
    })
}

#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn names_of_a_cluster_are_published_in_a_zone() {
    let _turn = lock_machine();
    let kops = Kops::new("kops-dns");
    let (_server, key) = serve_zone(&kops);
    let zone = format!("{}@{SERVER}", kops.name);
    let create = ["create", "cluster", "--cloud", "local", "--node-count", "2"];
    let refused = kops.run(&[&create[..], &["--dns", "public"]].concat()).refused();
    assert!(refused.contains("without spec.dnsZone"), "{refused}");
    let dns = ["--dns", "public", "--dns-zone", &zone, "--yes"];
    kops.run(&[&create[..], &dns[..]].concat()).ok();
    let secret = ["-n", "kube-system", "create", "secret", "generic", "dns-controller"];
    let file = format!("--from-file={key}");
    kops.cluster.kubectl(&[&secret[..], &[file.as_str()]].concat()).ok();
    let restart = ["-n", "kube-system", "rollout", "restart", "deployment", "dns-controller"];
    kops.cluster.kubectl(&restart).ok();
    let internal = wait_for_addresses(&kops, "api.internal", 1);
    assert_eq!(wait_for_addresses(&kops, "api", 1), internal);
    let path = kops.cluster.directory.join("service.yaml");
    fs::write(&path, SERVICE.replace("NAME", &format!("web.{}", kops.name))).unwrap();
    let path = path.display().to_string();
    kops.cluster.kubectl(&["apply", "-f", &path]).ok();
    let workers = wait_for_addresses(&kops, "web", 2);
    assert!(!workers.contains(&internal[0]), "{workers:?} {internal:?}");
    kops.cluster.kubectl(&["delete", "-f", &path]).ok();
    wait_for_addresses(&kops, "web", 0);
    assert_eq!(wait_for_addresses(&kops, "api.internal", 1), internal);
}
