//! The upgrade of a highly available cluster while a client writes.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use e2e::{Machines, init, is_etcd_installed, lock_machine, ready, until};

use super::{ALL, Admin, CONFIGURATION, wait_for_one_holder};
use crate::upgrade::{CURRENT, EARLIER, upgrade};

#[test]
#[ignore = "takes minutes: three control planes and a worker, upgraded one after another"]
fn upgrade_of_three_control_planes_loses_no_write() {
    let _turn = lock_machine();
    if !is_etcd_installed() {
        return;
    }
    let machines = Machines::new("haup");
    let [first, second, third, worker] = [("alpha", 1), ("beta", 2), ("gamma", 3), ("delta", 4)]
        .map(|(name, number)| machines.start(name, number));
    let all = [&first, &second, &third, &worker];
    let join = init(&first, &format!("{CONFIGURATION}\nkubernetesVersion: {EARLIER}"));
    thread::scope(|scope| {
        for (host, line) in
            [(&second, &join.control_plane), (&third, &join.control_plane), (&worker, &join.worker)]
        {
            scope.spawn(move || host.windlass(line).ok());
        }
    });
    let network = first.windlass("network print").ok();
    first.kubectl_with(&["apply", "-f", "-"], &network).ok();
    ready(&first, &all);
    let credentials = first.run("cat", &["/etc/kubernetes/admin.conf"]).ok();
    let kubeconfig = worker.write("admin.conf", &credentials);
    let admin = Admin { host: &worker, kubeconfig };
    admin.wait_for_servers(&ALL);

    let written = AtomicU32::new(0);
    admin.while_writing("three control planes and a worker are upgraded", &written, |more| {
        more(3);
        let output = first.windlass(&upgrade(&format!("apply {CURRENT} --yes"))).ok();
        assert!(output.contains("have not been upgraded"), "add-ons did not wait: {output}");
        for host in &all[1..] {
            host.windlass(&upgrade("node")).ok();
        }
        more(3);
    });
    admin.assert_has_all(&written);
    println!("{} writes in all", written.load(Ordering::Relaxed));
    wait_for_one_holder(&all[..3]);
    admin.wait_for_servers(&ALL);
    until("only images of the new version", || {
        let path = "jsonpath={.items[*].spec.containers[*].image}";
        let line = format!("-n kube-system get pods -o {path}");
        // The Pod network's manifest is the user's own, and `network print` prints the new one.
        let of = |images: &str| {
            images.split_whitespace().any(|i| i.contains(EARLIER) && !i.contains("/windlass:"))
        };
        admin.kubectl(&line).ok_if(|images| !images.is_empty() && !of(images))
    });
}
