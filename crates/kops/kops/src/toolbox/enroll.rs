//! Runs `kops toolbox enroll`: makes a machine that is reached by SSH a worker of a cluster on metal. The machine gets
//! a key, the cluster a Host with its public half, and nodeup configures the machine.

use std::{
    fs::File,
    io::Write as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use api_meta::Tree as _;
use client::Client;
use kops_api::{Object, yaml};
use kops_core::{CloudName, Cluster as _, NodeInputs, boot_config, node_config_path};
use kops_local::COMMAND_PERIOD;
use kops_node::controller::{HOSTS, HOSTS_NAMESPACE};
use kops_store::{Keyset, Registry};
use serde_json::{Value, json};

use crate::{environment::CommandEnvironment, error::Error, flags::EnrollFlags, get};

/// Creates the machine's key if it is missing, and prints the host name and the public key.
const IDENTIFY: &str = "set -e
umask 077
cd /
mkdir -p etc/kubernetes/kops/pki/machine
cd etc/kubernetes/kops/pki/machine
test -s private.pem || openssl ecparam -name prime256v1 -genkey -noout -out private.pem
openssl ec -in private.pem -pubout -out public.pem 2>/dev/null
chmod 644 public.pem
hostname
cat public.pem
";
/// The directory of the program, the program, and the boot configuration on the machine.
const DIRECTORY: &str = "/opt/kops/bin";
const PROGRAM: &str = "/opt/kops/bin/windlass";
const CONF: &str = "/opt/kops/conf/kube_env.yaml";
/// The running program.
const OWN_PROGRAM: &str = "/proc/self/exe";

pub(crate) async fn run(
    registry: &Registry,
    flags: &EnrollFlags,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let name = flags.cluster.as_deref().unwrap_or(name);
    let cluster = get::find_cluster(registry, name)?;
    let group = find_group(registry, &cluster, &flags.instance_group)?;
    let machine = RemoteMachine::new(flags, context)?;
    if flags.build_host {
        write!(context.out, "{}", yaml::to_string(&host(flags, &machine.identify()?)?))?;
        return Ok(());
    }
    // Find out what is missing here before the machine is changed.
    let boot = boot_configuration(registry, &cluster, &group)?;
    let client = flags.connection.open(registry, &cluster, None, COMMAND_PERIOD, context)?;
    let host = host(flags, &machine.identify()?)?;
    create_host(&client, &host).await?;
    writeln!(context.out, "Host {HOSTS_NAMESPACE}/{} exists", host.text("metadata.name"))?;
    machine.configure(&boot)?;
    writeln!(
        context.out,
        "nodeup has been started; kops validate cluster shows when it has joined"
    )?;
    Ok(())
}

/// Returns the instance group of workers to which the machine will belong.
fn find_group(registry: &Registry, cluster: &Object, name: &str) -> Result<Object, Error> {
    if cluster.cloud() != CloudName::Metal {
        let problem = "is not on metal: its cloud makes the machines";
        return Err(kops_store::Error::object("cluster", cluster.name(), problem).into());
    }
    let found = registry.group(cluster.name(), name)?;
    let (group, _) =
        found.ok_or_else(|| Error::NotFound { kind: "InstanceGroup", name: name.to_owned() })?;
    if group.spec.text("role") == "Node" {
        return Ok(group);
    }
    let problem = "has not the role Node: other machines get their boot configuration from update cluster --out";
    Err(kops_store::Error::object("instance group", name, problem).into())
}

/// Returns the boot configuration of the last update.
fn boot_configuration(
    registry: &Registry,
    cluster: &Object,
    group: &Object,
) -> Result<String, Error> {
    let name = cluster.name();
    let path = format!("{name}/{}", node_config_path(group.spec.text("role"), group.name()));
    let stored = registry.read_object(&path)?;
    let keyset = Keyset::read(registry, name, "kubernetes-ca")?;
    let (Some((config, _)), Some(keyset)) = (stored, keyset) else {
        let problem = "has no node configuration yet; run kops update cluster --yes";
        return Err(kops_store::Error::object("instance group", group.name(), problem).into());
    };
    let cluster = registry.complete_cluster(name)?.normalized();
    let inputs = NodeInputs {
        api_addresses: vec![cluster.spec.text("api.publicName").to_owned()],
        keysets: [("kubernetes-ca".to_owned(), keyset.public()?)].into(),
        ..NodeInputs::default()
    };
    Ok(boot_config(&cluster, group, &inputs, &String::from_utf8_lossy(&config)))
}

/// Returns the Host of a machine. `identity` is the output of [`IDENTIFY`].
fn host(flags: &EnrollFlags, identity: &str) -> Result<Value, Error> {
    const BEGIN: &str = "-----BEGIN PUBLIC KEY-----\n";
    let (hostname, key) = identity.split_once('\n').unwrap_or_default();
    if hostname.is_empty() || !key.starts_with(BEGIN) {
        let cause = "the output has no host name and public key".to_owned();
        return Err(Error::Ssh { operation: "create the key", host: flags.host.clone(), cause });
    }
    let mut host = json!({
        "apiVersion": "kops.k8s.io/v1alpha2", "kind": "Host",
        "metadata": {"name": hostname, "namespace": HOSTS_NAMESPACE},
        "spec": {"instanceGroup": flags.instance_group, "publicKey": key},
    });
    if !flags.pod_cidr.is_empty() {
        host.put("spec.podCIDRs", flags.pod_cidr.clone());
    }
    Ok(host)
}

/// Creates the Host. An existing one must be of the same machine and group.
async fn create_host(client: &Client, host: &Value) -> Result<(), Error> {
    let name = host.text("metadata.name");
    match client.create::<_, Value>(&HOSTS, HOSTS_NAMESPACE, host).await {
        Ok(_) => Ok(()),
        Err(error) if error.code() == Some(409) => {
            let existing: Value = client.get(&HOSTS, HOSTS_NAMESPACE, name).await?;
            let is_same = |path: &str| existing.text(path).trim() == host.text(path).trim();
            if is_same("spec.publicKey") && is_same("spec.instanceGroup") {
                return Ok(());
            }
            Err(Error::OtherHost { name: name.to_owned() })
        }
        Err(error) if error.is_not_found() => Err(Error::HostKind),
        Err(error) => Err(error.into()),
    }
}

/// A machine that is reached by SSH.
struct RemoteMachine<'a> {
    flags: &'a EnrollFlags,
    /// The search path of the command's environment.
    path: Option<String>,
}

impl<'a> RemoteMachine<'a> {
    fn new(flags: &'a EnrollFlags, context: &CommandEnvironment<'_>) -> Result<Self, Error> {
        // ssh would take it for an option.
        if flags.host.starts_with('-') || flags.ssh_user.starts_with('-') {
            let problem = "and --ssh-user must not begin with a dash";
            return Err(Error::Flag { flag: "--host", problem });
        }
        Ok(Self { flags, path: (context.environment)("PATH") })
    }

    /// Returns the machine's host name and public key.
    fn identify(&self) -> Result<String, Error> {
        self.run("create the key", "sh -s", IDENTIFY.as_bytes())
    }

    /// Installs the program and the boot configuration, and starts nodeup.
    fn configure(&self, boot: &str) -> Result<(), Error> {
        let install = format!(
            "sh -c 'umask 022 && mkdir -p {DIRECTORY} && cat >{PROGRAM}.new && chmod 755 {PROGRAM}.new && \
             mv {PROGRAM}.new {PROGRAM}'"
        );
        let own = File::open(OWN_PROGRAM)
            .map_err(kops_store::Error::file("reading the program", OWN_PROGRAM))?;
        let child = self.start("install windlass", &install, own.into())?;
        self.end("install windlass", child)?;
        let parent = Path::new(CONF).parent().unwrap_or(Path::new("/")).display();
        let store = format!("sh -c 'umask 077 && mkdir -p {parent} && cat >{CONF}'");
        self.run("write the boot configuration", &store, boot.as_bytes())?;
        let nodeup = format!("{PROGRAM} nodeup --install-systemd-unit --conf={CONF}");
        self.run("start nodeup", &nodeup, b"").map(drop)
    }

    /// Runs a command of the machine's root with this input, and returns its output.
    fn run(&self, operation: &'static str, command: &str, input: &[u8]) -> Result<String, Error> {
        let mut child = self.start(operation, command, Stdio::piped())?;
        // A command that ends early does not read its input, and its exit code says why.
        let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input));
        self.end(operation, child)
    }

    fn start(&self, operation: &'static str, command: &str, input: Stdio) -> Result<Child, Error> {
        let EnrollFlags { host, ssh_user, ssh_port, .. } = self.flags;
        let command = match ssh_user.as_str() {
            "root" => command.to_owned(),
            _ => format!("sudo {command}"),
        };
        let mut ssh = Command::new("ssh");
        ssh.args(["-p", &ssh_port.to_string(), "-l", ssh_user, "--", host, &command]);
        if let Some(path) = &self.path {
            ssh.env("PATH", path);
        }
        let child = ssh.stdin(input).stdout(Stdio::piped()).spawn();
        child.map_err(|error| self.failed(operation, &format!("starting ssh failed: {error}")))
    }

    /// Waits for the end of a command. Its errors are shown by ssh.
    fn end(&self, operation: &'static str, child: Child) -> Result<String, Error> {
        let output = child.wait_with_output();
        let output = output.map_err(|error| self.failed(operation, &error.to_string()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(self.failed(operation, &format!("ssh ended with {}", output.status)))
    }

    fn failed(&self, operation: &'static str, cause: &str) -> Error {
        Error::Ssh { operation, host: self.flags.host.clone(), cause: cause.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use testkit::{FakeApi, ServedResource};

    use super::*;

    fn flags() -> EnrollFlags {
        EnrollFlags {
            cluster: None,
            instance_group: "workers".to_owned(),
            host: "192.0.2.7".to_owned(),
            ssh_user: "root".to_owned(),
            ssh_port: 22,
            build_host: false,
            pod_cidr: vec!["10.0.1.0/24".to_owned()],
            connection: crate::flags::Connection::default(),
        }
    }

    #[test]
    fn reads_host_from_machine() {
        let key = "-----BEGIN PUBLIC KEY-----\nabc\n-----END PUBLIC KEY-----\n";
        let host = host(&flags(), &format!("worker-1\n{key}")).unwrap();
        assert_eq!((host.text("metadata.name"), host.text("spec.publicKey")), ("worker-1", key));
        assert_eq!(host["spec"]["podCIDRs"], json!(["10.0.1.0/24"]));
        for wrong in ["", "worker-1\n", "worker-1", &format!("\n{key}")] {
            assert!(super::host(&flags(), wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn keeps_host_of_same_machine_and_rejects_another() {
        let api = FakeApi::default();
        let client = api.client("test");
        let host = |key: &str| json!({"metadata": {"name": "a"}, "spec": {"instanceGroup": "workers", "publicKey": key}});
        api.serve(ServedResource {
            group: "kops.k8s.io",
            version: "v1alpha2",
            plural: "hosts",
            kind: "Host",
            namespaced: true,
        });
        create_host(&client, &host("k")).await.unwrap();
        create_host(&client, &host("k\n")).await.unwrap();
        let error = create_host(&client, &host("other")).await.unwrap_err();
        assert!(matches!(error, Error::OtherHost { .. }), "{error}");
    }
}
