//! The keypairs that machines use and trust. A change of a keyset that would cut a machine off is rejected.
//!
//! A machine takes its keypairs from its configuration, never from the state of a keyset. So its configuration, whose
//! hash the machine was created with, shows what it uses and trusts. The machines that a group makes next count too.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use api_meta::Tree as _;
use instances::{Fleet, untrusted};
use kops_core::{content_hash, node_config_path};
use kops_node::nodeup::APPLIED_CONFIG;
use kops_store::{Keyset, Registry, SERVICE_ACCOUNT, parse_yaml};
use pki::Cert;
use serde_json::Value;

use crate::error::Error;

/// The largest node configuration that is read from a machine's disk, in bytes.
const LARGEST_CONFIG: u64 = 4 << 20;
/// The keyset that a worker trusts by its boot configuration.
const KUBERNETES_CA: &str = "kubernetes-ca";
/// The longest time for which a Pod keeps a token. Its kubelet renews it earlier.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3607);

/// Returns the node configuration that a machine has applied; `None` if it cannot be read. A program on the machine may
/// have replaced it, so that of a worker counts only if the caller finds the hash of its user data.
pub fn applied_config(fleet: &Fleet, machine: &str) -> Option<Vec<u8>> {
    let path = Path::new(APPLIED_CONFIG.trim_start_matches('/'));
    untrusted::read(&fleet.disk(machine), path, LARGEST_CONFIG)
}

/// A machine, or the machines that a group makes next.
struct KeyUser {
    /// The words for it in errors.
    place: String,
    /// The creation time of a control plane's machine.
    signs_since: Option<SystemTime>,
    /// The creation time of a machine.
    created: Option<SystemTime>,
    boot: Value,
    config: Value,
}

/// The machines of a cluster, by the keypairs that they use and trust.
#[derive(Default)]
pub struct KeyUsers(Vec<KeyUser>);

impl KeyUsers {
    /// Reads the configurations of the existing machines. A machine that has not been configured uses no keypair.
    pub fn of_configured(registry: &Registry, fleet: &Fleet) -> Result<Self, Error> {
        let Some(spec) = fleet.spec()? else { return Ok(Self::default()) };
        let mut users = Vec::new();
        for name in spec.names() {
            users.extend(KeyUser::of_machine(registry, fleet, &name)?);
        }
        Ok(Self(users))
    }

    /// Reads the configurations of the existing machines, and of those that the groups make next.
    ///
    /// # Errors
    ///
    /// Fails if one of them is unknown.
    pub fn of_cluster(registry: &Registry, fleet: &Fleet) -> Result<Self, Error> {
        let Some(spec) = fleet.spec()? else { return Ok(Self::default()) };
        let unknown = |place: &str| Error::UnknownKeys { place: place.to_owned() };
        let mut users = Vec::new();
        for group in &spec.groups {
            for name in group.names() {
                let user = KeyUser::of_machine(registry, fleet, &name)?;
                if user.is_none() && fleet.machine(&name)?.is_some() {
                    return Err(unknown(&format!("machine {name}")));
                }
                users.extend(user);
            }
            let place = format!("instance group {}", group.name);
            let user = KeyUser::read(registry, &spec.cluster, &place, &group.user_data, None)?;
            users.push(user.ok_or_else(|| unknown(&place))?);
        }
        Ok(Self(users))
    }

    /// Checks that everything trusts the primary keypair of a keyset, and that nothing uses a distrusted one.
    pub fn check(&self, keyset: &Keyset) -> Result<(), Error> {
        let (keyset_name, primary) = (&keyset.name, keyset.primary_id());
        for user in &self.0 {
            let place = user.place.clone();
            if !user.trusts(keyset)? {
                let (keyset, id) = (keyset_name.clone(), primary.to_owned());
                return Err(Error::KeypairUntrusted { keyset, id, place });
            }
            let used = user.config.text(&format!("KeypairIDs.{keyset_name}"));
            if !used.is_empty() && !keyset.is_trusted(used) {
                let (keyset, id) = (keyset_name.clone(), used.to_owned());
                return Err(Error::KeypairInUse { keyset, id, place });
            }
        }
        Ok(())
    }

    /// Checks that no Pod has a token of a signing key that a change distrusts. A machine that is older than the newest
    /// control plane may have Pods with tokens of an API server that signed with that key. The key may be newer than
    /// the primary, which may have been promoted again.
    pub fn check_tokens(
        &self,
        before: &Keyset,
        after: &Keyset,
        now: SystemTime,
    ) -> Result<(), Error> {
        if after.name != SERVICE_ACCOUNT || !after.distrusted().any(|id| before.is_trusted(id)) {
            return Ok(());
        }
        let Some(switched) = self.0.iter().filter_map(|user| user.signs_since).max() else {
            return Ok(());
        };
        let Ok(left) = (switched + TOKEN_LIFETIME).duration_since(now) else { return Ok(()) };
        let is_older = |user: &&KeyUser| user.created.is_some_and(|created| created < switched);
        match self.0.iter().find(is_older) {
            None => Ok(()),
            Some(user) => {
                let (place, minutes) = (user.place.clone(), left.as_secs().div_ceil(60));
                Err(Error::TokensInUse { place, minutes })
            }
        }
    }
}

impl KeyUser {
    fn of_machine(registry: &Registry, fleet: &Fleet, name: &str) -> Result<Option<Self>, Error> {
        let Some(machine) = fleet.machine(name)? else { return Ok(None) };
        let (cluster, applied) = (&machine.cluster, applied_config(fleet, name));
        let place = format!("machine {name}");
        let user = Self::read(registry, cluster, &place, &machine.user_data, applied)?;
        let created = Duration::from_secs(u64::try_from(machine.made).unwrap_or_default());
        let created = SystemTime::UNIX_EPOCH + created;
        let signs_since = machine.trusted.then_some(created);
        Ok(user.map(|user| Self { signs_since, created: Some(created), ..user }))
    }

    /// Reads the configuration with the hash in the user data: the applied one, or the stored one of a machine that has
    /// not applied it yet. Returns `None` if neither has that hash.
    fn read(
        registry: &Registry,
        cluster: &str,
        place: &str,
        user_data: &str,
        applied: Option<Vec<u8>>,
    ) -> Result<Option<Self>, Error> {
        let boot = parse_yaml(place, user_data.as_bytes())?;
        let is_meant = |config: &Vec<u8>| content_hash(config) == boot.text("NodeupConfigHash");
        let config = match applied.filter(is_meant) {
            Some(config) => config,
            None => {
                let (role, group) =
                    (boot.text("InstanceGroupRole"), boot.text("InstanceGroupName"));
                let path = format!("{cluster}/{}", node_config_path(role, group));
                let stored = registry.read_object(&path)?.map(|(config, _)| config);
                let Some(config) = stored.filter(is_meant) else { return Ok(None) };
                config
            }
        };
        let config = parse_yaml(place, &config)?;
        let place = place.to_owned();
        Ok(Some(Self { place, signs_since: None, created: None, boot, config }))
    }

    /// Reports whether the machine trusts the primary keypair of a keyset, or does not use the keyset.
    fn trusts(&self, keyset: &Keyset) -> Result<bool, Error> {
        let (cert, _) = keyset.primary()?;
        if keyset.name == SERVICE_ACCOUNT {
            let keys = self.config.text("APIServerConfig.ServiceAccountPublicKeys");
            let keys = pki::decode_all(keys)?;
            let own = cert.public_der()?;
            return Ok(keys.is_empty() || keys.iter().any(|(_, key)| *key == own));
        }
        let by_config = self.config.text(&format!("CAs.{}", keyset.name));
        let by_boot = self.boot.text("ConfigServer.CACertificates");
        let trusted = match (by_config, keyset.name.as_str()) {
            ("", KUBERNETES_CA) => by_boot,
            (certificates, _) => certificates,
        };
        Ok(trusted.is_empty() || Cert::all_from_pem(trusted)?.contains(cert))
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use instances::{FleetSpec, Group, Machine};
    use kops_core::NodeKeyset;
    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    const CLUSTER: &str = "a.local";

    /// A cluster with a control plane and a worker, each made at a number of seconds.
    struct TestCluster {
        directory: TempDir,
        registry: Registry,
        keysets: BTreeMap<&'static str, Keyset>,
    }

    impl TestCluster {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let state = format!("file://{}/state", directory.path().display());
            let registry = Registry::open(&state, &|_| None).unwrap();
            let keysets = [KUBERNETES_CA, SERVICE_ACCOUNT, "etcd-clients-ca"];
            let keysets = keysets.map(|name| (name, Keyset::generate(name, rt::now()).unwrap()));
            let place = Self { directory, registry, keysets: keysets.into() };
            place.update();
            place
        }

        fn fleet(&self) -> Fleet {
            Fleet::at(self.directory.path().join("fleet"))
        }

        /// Writes the configurations of the groups, as an update does.
        fn update(&self) {
            let public: BTreeMap<&str, NodeKeyset> =
                self.keysets.iter().map(|(name, set)| (*name, set.public().unwrap())).collect();
            let group = |name: &str, role: &str| {
                let serves = role == "ControlPlane";
                let (mut ids, mut cas) = (json!({}), json!({}));
                for (name, keyset) in &public {
                    if serves || *name == KUBERNETES_CA {
                        ids[*name] = keyset.primary_id.clone().into();
                    }
                    if serves && *name != SERVICE_ACCOUNT {
                        cas[*name] = keyset.certificates.clone().into();
                    }
                }
                let mut config = json!({"CAs": cas, "KeypairIDs": ids});
                let mut boot = json!({"InstanceGroupName": name, "InstanceGroupRole": role});
                if serves {
                    let keys = public[SERVICE_ACCOUNT].public_keys.clone();
                    config["APIServerConfig"] = json!({"ServiceAccountPublicKeys": keys});
                } else {
                    let certificates = public[KUBERNETES_CA].certificates.clone();
                    boot["ConfigServer"] = json!({"CACertificates": certificates});
                }
                let config = config.to_string();
                boot["NodeupConfigHash"] = content_hash(config.as_bytes()).into();
                let path = format!("state/{CLUSTER}/{}", node_config_path(role, name));
                let path = self.directory.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, config).unwrap();
                Group {
                    name: name.to_owned(),
                    numbers: [1].into(),
                    trusted: serves,
                    user_data: boot.to_string(),
                    ..Group::default()
                }
            };
            let groups = vec![group("cp", "ControlPlane"), group("nodes", "Node")];
            let spec = FleetSpec { cluster: CLUSTER.to_owned(), groups, ..FleetSpec::default() };
            self.fleet().write(&spec).unwrap();
        }

        /// Replaces the machine of a group. The new one applies its configuration.
        fn replace(&self, name: &str, made: i64) {
            let fleet = self.fleet();
            let spec = fleet.spec().unwrap().unwrap();
            let group = spec.groups.iter().find(|group| group.name == name).unwrap();
            let machine = format!("{name}-1");
            let address = "172.29.0.2".parse().unwrap();
            let document = Machine {
                cluster: CLUSTER.to_owned(),
                group: name.to_owned(),
                name: machine.clone(),
                id: machine.clone(),
                made,
                address,
                gateway: address,
                cgroup: String::new(),
                trusted: group.trusted,
                user_data: group.user_data.clone(),
                volumes: Vec::new(),
            };
            let root = fleet.root.join("machines").join(&machine);
            fs::create_dir_all(root.join("document")).unwrap();
            let text = serde_json::to_string(&document).unwrap();
            fs::write(root.join("document/machine.json"), text).unwrap();
            let role = if group.trusted { "ControlPlane" } else { "Node" };
            let stored = format!("state/{CLUSTER}/{}", node_config_path(role, name));
            let config = fs::read(self.directory.path().join(stored)).unwrap();
            let applied = fleet.disk(&machine).join(APPLIED_CONFIG.trim_start_matches('/'));
            fs::create_dir_all(applied.parent().unwrap()).unwrap();
            fs::write(applied, config).unwrap();
        }

        fn roll(&self) {
            self.replace("cp", 100);
            self.replace("nodes", 200);
        }

        /// Changes each keyset, and returns the first error of the checks; empty if all pass.
        fn change(&mut self, edit: impl Fn(&mut Keyset)) -> String {
            let users = KeyUsers::of_cluster(&self.registry, &self.fleet()).unwrap();
            let mut problem = String::new();
            for (name, keyset) in &mut self.keysets {
                let text = keyset.document(true).unwrap();
                let read = || Keyset::parse("x", name, text.as_bytes()).unwrap();
                edit(keyset);
                let checked = users.check(keyset);
                let now = SystemTime::UNIX_EPOCH + Duration::from_secs(300);
                let checked = checked.and_then(|()| users.check_tokens(&read(), keyset, now));
                if let Err(error) = checked {
                    problem = error.to_string();
                    *keyset = read();
                }
            }
            problem
        }
    }

    fn promote(keyset: &mut Keyset) {
        keyset.promote(None).unwrap();
    }

    fn distrust(keyset: &mut Keyset) {
        keyset.distrust(&[], rt::now().into()).unwrap();
    }

    #[test]
    fn rejects_each_step_of_a_rotation_until_all_machines_followed_the_last() {
        let mut place = TestCluster::new();
        place.roll();
        assert_eq!(
            place.change(|keyset| drop(keyset.add(None, None, false, rt::now()).unwrap())),
            ""
        );
        assert!(place.change(promote).contains("does not trust"));
        place.update();
        assert!(place.change(promote).contains("machine"));
        // The worker still lacks the new authority.
        place.replace("cp", 100);
        assert!(place.change(promote).contains("machine nodes-1 does not trust"));
        place.replace("nodes", 200);
        assert_eq!(place.change(promote), "");
        // The machines use the old keypairs until they are replaced.
        assert!(place.change(distrust).contains("uses keypair"));
        place.update();
        assert!(place.change(distrust).contains("machine"));
        place.replace("cp", 100);
        assert!(place.change(distrust).contains("machine nodes-1 uses keypair"));
        place.replace("nodes", 200);
        assert_eq!(place.change(distrust), "");
        place.update();
        // The next machines trust only the new keypairs, so the old ones cannot return at once.
        let back = place.change(|keyset| {
            let old = keyset.distrusted().next().unwrap().to_owned();
            keyset.trust(std::slice::from_ref(&old)).unwrap();
            keyset.promote(Some(&old)).unwrap();
        });
        assert!(back.contains("instance group"), "{back}");
    }

    #[test]
    fn rejects_the_end_of_a_signing_key_while_pods_have_its_tokens() {
        let mut place = TestCluster::new();
        place.roll();
        place.change(|keyset| drop(keyset.add(None, None, false, rt::now()).unwrap()));
        place.update();
        place.roll();
        assert_eq!(place.change(promote), "");
        place.update();
        place.replace("nodes", 100);
        place.replace("cp", 200);
        let problem = place.change(distrust);
        assert!(problem.contains("machine nodes-1") && problem.contains("59 minutes"), "{problem}");
    }

    #[test]
    fn rejects_the_end_of_a_newer_signing_key_that_is_no_longer_the_primary() {
        let primaries = |place: &TestCluster| -> BTreeMap<String, String> {
            let keysets = place.keysets.values();
            keysets.map(|keyset| (keyset.name.clone(), keyset.primary_id().to_owned())).collect()
        };
        let mut place = TestCluster::new();
        place.roll();
        let old = primaries(&place);
        place.change(|keyset| drop(keyset.add(None, None, false, rt::now()).unwrap()));
        place.update();
        place.roll();
        assert_eq!(place.change(promote), "");
        let new = primaries(&place);
        place.update();
        place.roll();
        let back = |keyset: &mut Keyset| drop(keyset.promote(Some(&old[&keyset.name])).unwrap());
        assert_eq!(place.change(back), "");
        place.update();
        place.replace("nodes", 100);
        place.replace("cp", 200);
        let problem = place.change(|keyset| {
            let id = new[&keyset.name].clone();
            keyset.distrust(&[id], rt::now().into()).unwrap();
        });
        assert!(problem.contains("Pods of machine nodes-1"), "{problem}");
    }

    #[test]
    fn rejects_changes_while_a_machines_keypairs_are_unknown() {
        let place = TestCluster::new();
        place.roll();
        // A program on the machine replaces the configuration, and the stored one is newer.
        let disk = place.fleet().disk("nodes-1").join(APPLIED_CONFIG.trim_start_matches('/'));
        fs::write(disk, "KeypairIDs: {kubernetes-ca: '7'}\n").unwrap();
        let path = format!("{CLUSTER}/{}", node_config_path("Node", "nodes"));
        fs::write(place.directory.path().join("state").join(path), "{}").unwrap();
        let error = KeyUsers::of_cluster(&place.registry, &place.fleet()).err().unwrap();
        assert!(error.to_string().contains("machine nodes-1"), "{error}");
        // An update does not depend on it: it makes the machine known again.
        let known = KeyUsers::of_configured(&place.registry, &place.fleet()).unwrap();
        assert_eq!(known.0.len(), 1);
        fs::remove_dir_all(place.fleet().root).unwrap();
        assert!(KeyUsers::of_cluster(&place.registry, &place.fleet()).unwrap().0.is_empty());
    }
}
