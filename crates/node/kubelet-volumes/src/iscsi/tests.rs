//! iSCSI volumes with stand-ins for the host's programs: this tests arguments, records and their order, and no real
//! target.

use std::{
    os::unix::fs::{PermissionsExt as _, symlink},
    time::Duration,
};

use client::Resource;
use k8s_openapi::api::core::v1::ISCSIVolumeSource;
use pod_core::fields::NodeFacts;
use serde_json::{Value, json};
use sys::mount::RecordedMounts;
use testkit::FakeApi;

use super::*;
use crate::{MountedVolumes, Tokens, tests};

const IQN: &str = "iqn.2001-04.com.example:disk";
const PASSWORD: &str = "a-secret-of-chap";

/// A node whose programs write their names and arguments to a log.
struct Node {
    dir: tempfile::TempDir,
    api: FakeApi,
    kernel: Arc<RecordedMounts>,
    volumes: Volumes,
}

impl Node {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for below in ["bin", "kubelet", "system/dev/disk/by-path", "system/etc/iscsi"] {
            fs::create_dir_all(dir.path().join(below)).unwrap();
        }
        let api = FakeApi::default();
        let secret = json!({"metadata": {"name": "chap", "namespace": "default"}, "data": {
            "node.session.auth.username": "dXNlcg==",
            "node.session.auth.password": data_encoding::BASE64.encode(PASSWORD.as_bytes()),
            "discovery.sendtargets.auth.password": "b3RoZXI="}});
        api.create(&Resource::SECRETS, secret).await;
        let kernel = Arc::new(RecordedMounts::default());
        let path = format!("{}:/usr/bin:/bin", dir.path().join("bin").display());
        let programs = VolumePrograms::new(path, Duration::from_secs(30))
            .with_system(dir.path().join("system"));
        let client = Some(api.client("kubelet"));
        let mut volumes = tests::volumes(&dir.path().join("kubelet"), kernel.clone(), client);
        volumes.programs = programs;
        volumes.operations = crate::Operations::new(Duration::from_secs(20));
        let node = Self { dir, api, kernel, volumes };
        for name in ["mount", "umount", "mkfs.ext4", "fsck"] {
            node.stand_in(name, "");
        }
        node.stand_in("blkid", "exit 2");
        let record = node.record();
        fs::create_dir_all(record.parent().unwrap()).unwrap();
        // The discovery writes the record that `iscsiadm` keeps of the target.
        let discover = format!(
            "case \"$*\" in *--discover*) printf '# BEGIN RECORD 2.1\\nnode.name = {IQN}\\n\
             node.session.auth.authmethod = None\\n# END RECORD\\n' > {} ;; esac",
            record.display()
        );
        node.stand_in("iscsiadm", &discover);
        let link = format!("ip-192.0.2.1:3260-iscsi-{IQN}-lun-1");
        fs::write(node.dir.path().join("system/sdx"), "").unwrap();
        symlink("../../../sdx", node.dir.path().join("system/dev/disk/by-path").join(link))
            .unwrap();
        node
    }

    fn record(&self) -> PathBuf {
        let records = self.dir.path().join("system/etc/iscsi/nodes").join(IQN);
        records.join("192.0.2.1,3260,1/default")
    }

    fn stand_in(&self, name: &str, script: &str) {
        let bin = self.dir.path().join("bin");
        let log = self.dir.path().join("log");
        let body = format!("echo {name} \"$@\" >> {}\n{script}", log.display());
        testkit::write_script(&bin.join(name), &body);
    }

    /// Returns the calls since the last query.
    fn calls(&self) -> Vec<String> {
        let log = self.dir.path().join("log");
        let text = fs::read_to_string(&log).unwrap_or_default();
        fs::write(log, "").unwrap();
        text.lines().map(str::to_owned).collect()
    }

    async fn mount(&self, uid: &str) -> Result<MountedVolumes, String> {
        let volume = json!({"name": "v", "iscsi": {"targetPortal": "192.0.2.1", "iqn": IQN, "lun": 1,
            "chapAuthSession": true, "secretRef": {"name": "chap"}}});
        let pod = tests::pod(uid, json!([volume]));
        let done = self.volumes.mount(&pod, &NodeFacts::default, &Tokens::default()).await;
        done.map_err(|error| error.to_string())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_in_once_for_a_node_and_out_after_the_last_pod() {
    let node = Node::new().await;
    let mounted = node.mount("one").await.unwrap();
    let root = node.dir.path().join("kubelet");
    let whole =
        root.join(format!("plugins/kubernetes.io/iscsi/iface-default/192.0.2.1:3260-{IQN}-lun-1"));
    let at = root.join("pods/one/volumes/kubernetes.io~iscsi/v");
    assert_eq!(mounted.path("v").unwrap().path, at);
    assert!(node.kernel.is_mount_point(&at).unwrap());
    let device = node.dir.path().join("system/sdx");
    let (device, whole_text) = (device.display(), whole.display());
    let record = format!("iscsiadm -m node -p 192.0.2.1:3260 -T {IQN} -I default");
    let calls = node.calls();
    assert_eq!(
        calls,
        [
            "iscsiadm -m discoverydb -t sendtargets -p 192.0.2.1:3260 -I default --discover"
                .to_owned(),
            format!("{record} --login"),
            format!("{record} -o update -n node.startup -v manual"),
            format!("blkid -p -s TYPE -s PTTYPE -o export {device}"),
            format!("mkfs.ext4 -F -m0 {device}"),
            format!("mount -t ext4 -o rw,defaults {device} {whole_text}"),
        ]
    );
    // The secret is in the record, which only root can read, and in no arguments.
    let text = fs::read_to_string(node.record()).unwrap();
    assert_eq!(
        text,
        format!(
            "# BEGIN RECORD 2.1\nnode.name = {IQN}\nnode.session.auth.authmethod = CHAP\n\
             node.session.auth.password = {PASSWORD}\nnode.session.auth.username = user\n# END RECORD\n"
        )
    );
    assert_eq!(fs::metadata(node.record()).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!calls.concat().contains(PASSWORD));

    node.kernel.tmpfs(&whole, None).unwrap();
    node.mount("one").await.unwrap();
    node.mount("two").await.unwrap();
    assert!(node.calls().is_empty(), "the node has the disk already");
    node.volumes.unmount("one").await.unwrap();
    assert_eq!(node.calls(), [format!("umount {}", at.display())]);
    assert!(!root.join("pods/one").exists());
    node.volumes.unmount("two").await.unwrap();
    let other = root.join("pods/two/volumes/kubernetes.io~iscsi/v");
    let last = [
        format!("umount {}", other.display()),
        format!("umount {whole_text}"),
        format!("{record} --logout"),
        format!("{record} -o delete"),
    ];
    assert_eq!(node.calls(), last);
    node.volumes.unmount("two").await.unwrap();
    assert!(node.calls().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_login_keeps_no_secret_and_busy_disk_keeps_its_session() {
    let node = Node::new().await;
    let script = fs::read_to_string(node.dir.path().join("bin/iscsiadm")).unwrap();
    let script = script.lines().skip(2).collect::<Vec<_>>().join("\n");
    let refuse = format!(
        "{script}\ncase \"$*\" in *--login) echo 'initiator reported error' >&2; exit 24 ;; esac"
    );
    node.stand_in("iscsiadm", &refuse);
    let error = node.mount("one").await.unwrap_err();
    assert!(error.contains("iscsiadm failed: exit status 24"), "{error}");
    assert!(error.contains("initiator reported error") && !error.contains(PASSWORD), "{error}");
    assert!(node.calls().last().unwrap().ends_with("-o delete"));
    // Nothing was logged in, which `iscsiadm` reports by its exit code.
    node.stand_in("iscsiadm", "exit 21");
    node.volumes.unmount("one").await.unwrap();

    node.stand_in("iscsiadm", &script);
    let mounted = node.mount("two").await.unwrap();
    let at = mounted.path("v").unwrap().path.clone();
    node.stand_in("umount", "echo 'target is busy' >&2; exit 32");
    node.calls();
    let error = node.volumes.unmount("two").await.unwrap_err().to_string();
    assert!(error.contains("target is busy"), "{error}");
    assert_eq!(node.calls(), [format!("umount {}", at.display())], "it is tried again later");
    assert!(at.is_dir());
    // An existing session is scanned again, so that a new disk of the target appears.
    let existing = format!("{script}\ncase \"$*\" in *--login) exit 15 ;; esac");
    node.stand_in("iscsiadm", &existing);
    node.mount("three").await.unwrap();
    assert!(node.calls().iter().any(|call| call.ends_with(&format!("-T {IQN} -R"))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn persistent_disk_is_in_use_from_before_the_login_until_after_the_logout() {
    let node = Node::new().await;
    let name = format!("kubernetes.io/iscsi/192.0.2.1:{IQN}:1");
    let in_use = |volumes: &Volumes| volumes.drivers.in_use(|_| true);
    let source = json!({"targetPortal": "192.0.2.1", "iqn": IQN, "lun": 1});
    let volume: PersistentVolume = serde_json::from_value(json!({"metadata": {"name": "pv"},
        "spec": {"iscsi": source, "mountOptions": ["noatime"]}}))
    .unwrap();
    let pod =
        tests::pod("one", json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]));
    let (tokens, facts) = (Tokens::default(), NodeFacts::default);
    let request = Request {
        volumes: &node.volumes,
        pod: &pod,
        volume: &pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0],
        node: &facts,
        tokens: &tokens,
    };
    let source = volume.spec.as_ref().unwrap().iscsi.clone().unwrap();
    let attach = prepare_volume(&request, &volume, &source, true);
    let early = tokio::time::timeout(Duration::from_millis(300), attach).await;
    assert!(early.is_err() && node.calls().is_empty(), "no node uses a disk that it does not have");
    assert_eq!(in_use(&node.volumes), std::slice::from_ref(&name), "the controller sees who waits");
    let status =
        json!({"volumesAttached": [{"name": name, "devicePath": ""}], "volumesInUse": [name]});
    node.api
        .create(&Resource::NODES, json!({"metadata": {"name": "node"}, "status": status}))
        .await;
    node.stand_in("blkid", "");
    let work = prepare_volume(&request, &volume, &source, true).await.unwrap();
    let site = Site {
        space: node.volumes.space.clone(),
        pod: pod.clone(),
        pod_dir: node.volumes.pod_dir("one"),
        volume: "v".to_owned(),
        mounts: node.kernel.clone(),
        now: node.volumes.now(),
        programs: node.volumes.programs.clone(),
        runtime: tokio::runtime::Handle::current(),
    };
    let mounted = tokio::task::spawn_blocking(move || work(&site)).await.unwrap().unwrap();
    assert!(mounted.read_only && mounted.path.ends_with("kubernetes.io~iscsi/pv"));
    let calls = node.calls();
    assert!(calls.last().unwrap().starts_with("mount -t ext4 -o noatime,ro,defaults"), "{calls:?}");
    assert!(
        !calls.iter().any(|call| call.starts_with("mkfs")),
        "a read-only disk is not formatted"
    );

    // A restarted kubelet finds it on the disk.
    let mut anew = tests::volumes(&node.volumes.root, node.kernel.clone(), None);
    anew.programs = node.volumes.programs.clone();
    anew.reconstruct().await.unwrap();
    assert_eq!(in_use(&anew), [name]);
    node.stand_in("umount", "exit 32");
    anew.unmount("one").await.unwrap_err();
    assert_eq!(in_use(&anew).len(), 1);
    node.stand_in("umount", "");
    anew.unmount("one").await.unwrap();
    assert!(in_use(&anew).is_empty());
}

#[test]
fn completes_portals_and_rejects_what_could_be_options_or_paths() {
    let source = |change: Value| {
        let mut source = json!({"targetPortal": "192.0.2.1", "iqn": IQN, "lun": 1});
        source.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        Source::inline(&serde_json::from_value::<ISCSIVolumeSource>(source).unwrap())
    };
    let portals = |change: Value| source(change).unwrap().target.portals;
    assert_eq!(portals(json!({})), ["192.0.2.1:3260"]);
    let many = json!({"targetPortal": "san.example.com:3261", "portals": ["192.0.2.2", "san.example.com:3261"]});
    assert_eq!(portals(many), ["san.example.com:3261", "192.0.2.2:3260"]);
    assert_eq!(portals(json!({"targetPortal": "[fd00::1]"})), ["[fd00::1]:3260"]);
    assert_eq!(portals(json!({"targetPortal": "[fd00::1]:99"})), ["[fd00::1]:99"]);
    for (bad, field) in [
        (json!({"targetPortal": "-p"}), "targetPortal"),
        (json!({"targetPortal": "a/../../b"}), "targetPortal"),
        (json!({"portals": ["a b"]}), "targetPortal"),
        (json!({"iqn": "../../../etc"}), "iqn"),
        (json!({"iqn": "-T"}), "iqn"),
        (json!({"iqn": ""}), "iqn"),
        (json!({"iqn": "a\nb"}), "iqn"),
        (json!({"iscsiInterface": "--logout"}), "iscsiInterface"),
        (json!({"iscsiInterface": "a/b"}), "iscsiInterface"),
        (json!({"lun": 256}), "lun"),
        (json!({"lun": -1}), "lun"),
        (json!({"fsType": "ext4 -o suid"}), "fsType"),
        (json!({"fsType": "../ext4"}), "fsType"),
        (json!({"fsType": "proc"}), "fsType"),
        (json!({"fsType": "debugfs"}), "fsType"),
        (json!({"fsType": "overlay"}), "fsType"),
        (json!({"initiatorName": "iqn.x"}), "initiatorName"),
    ] {
        let error = source(bad.clone()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("iscsi.{field} ")), "{bad}: {error}");
    }
}
