//! Limited Pods, measured by real transfers. A kernel without `sch_tbf` or `ifb` must refuse them.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use netlink::{Namespace, Net as _};
use serde_json::{Value, json};

use crate::{Node, Pod};

/// The bytes of a transfer.
const SIZE: usize = 3 << 20;

/// Returns the time of a transfer between the node and a Pod.
fn transfer(node: &Node, pod: &Pod, from_pod: bool) -> Duration {
    let address: SocketAddr = format!("{}:0", pod.address).parse().unwrap();
    let listener = pod.namespace.run(|| TcpListener::bind(address).unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
    let mut outer = node.namespace.run(connect).unwrap();
    let mut inner = listener.accept().unwrap().0;
    let (sender, receiver) =
        if from_pod { (&mut inner, &mut outer) } else { (&mut outer, &mut inner) };
    receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut bytes = vec![0; SIZE];
            receiver.read_exact(&mut bytes).unwrap();
        });
        sender.write_all(&vec![7; SIZE]).unwrap();
        reader.join().unwrap();
    });
    start.elapsed()
}

fn limits(limits: Value) -> Value {
    json!({"runtimeConfig": {"bandwidth": limits}})
}

#[test]
fn limits_what_pods_send_and_receive() {
    let node = Node::new();
    // 16 Mbit/s are 2 MB/s, so a transfer takes a second and a half. The keys are those of containerd.
    let more = limits(json!({"IngressRate": 16_000_000, "IngressBurst": 800_000,
        "EgressRate": 16_000_000, "EgressBurst": 800_000}));
    let namespace = Namespace::new().unwrap();
    match node.call("ADD", "limited", Some(&namespace), more.clone()) {
        Err(failure) => {
            assert_eq!(failure.code, 103, "{failure}");
            assert!(failure.message.contains("remove the annotations"), "{failure}");
            return eprintln!("the kernel cannot limit bandwidth: {failure}");
        }
        Ok(_) => node.call("DEL", "limited", Some(&namespace), json!({})).unwrap(),
    };
    let (limited, free) = (node.add("limited", more.clone()), node.add("free", json!({})));
    for from_pod in [false, true] {
        let (slow, fast) = (transfer(&node, &limited, from_pod), transfer(&node, &free, from_pod));
        assert!(slow > Duration::from_millis(1200), "{slow:?}, from the Pod: {from_pod}");
        assert!(fast < slow / 2, "{fast:?} without a limit, {slow:?} with one");
    }
    // A repeated ADD, as after a crash, and the end.
    node.call("ADD", "limited", Some(&limited.namespace), more.clone()).unwrap();
    assert!(transfer(&node, &limited, true) > Duration::from_millis(1200));
    let devices = || {
        let links = node.namespace.kernel().unwrap().links().unwrap();
        links.iter().filter(|link| link.name.starts_with("ifb")).count()
    };
    assert_eq!(devices(), 1);
    node.delete(&limited);
    assert_eq!(devices(), 0);
}

#[test]
fn rejects_malformed_limits() {
    let node = Node::new();
    let pod = Namespace::new().unwrap();
    for bad in [json!({"ingressRate": -1}), json!({"egressRate": "1M"}), json!(7)] {
        let failure = node.call("ADD", "a", Some(&pod), limits(bad)).unwrap_err();
        assert_eq!(failure.code, 6, "{failure}");
    }
    node.add("a", limits(Value::Null));
}
