//! `windlass support-bundle`: writes a directory that shows the state of a cluster, without its secrets.
//!
//! Three rules keep secrets out. Secrets are left out, and so are values of environment variables and of ConfigMaps.
//! Every value of a Secret that the API returns is replaced wherever it occurs, in plain text and in base64. Tokens and
//! keys are replaced by their form.

mod redact;

use std::{fs, path::PathBuf, process::Command, time::Duration};

use api_meta::Tree as _;
use client::{Client, ListOptions, Resource};
use serde_json::Value;

use crate::{cluster::Cluster, cluster_args::ClusterArgs, error::Error, process::Role};
use redact::Redactor;

/// Writes a directory with logs, objects and the state of a cluster, without its secrets, for a report of a problem
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The directory to create
    pub directory: PathBuf,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// The kinds of objects in the bundle.
const KINDS: [Resource; 12] = [
    Resource::NODES,
    Resource::PODS,
    Resource::SERVICES,
    Resource::ENDPOINT_SLICES,
    Resource::EVENTS,
    Resource::DEPLOYMENTS,
    Resource::DAEMON_SETS,
    Resource::STATEFUL_SETS,
    Resource::JOBS,
    Resource::PERSISTENT_VOLUMES,
    Resource::PERSISTENT_VOLUME_CLAIMS,
    Resource::LEASES,
];
/// The longest wait for an answer of the API server, which may be the problem.
const ANSWER: Duration = Duration::from_secs(10);
/// The number of lines of each log, at most those of its last 64 KiB.
const LINES: usize = 5000;

/// Writes the bundle. Parts that cannot be read are named in it.
pub async fn run(args: Args) -> Result<(), Error> {
    let cluster = args.cluster.load()?;
    let directory = &args.directory;
    fs::create_dir(directory).map_err(Error::file("creating", directory))?;
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(directory, private).map_err(Error::file("protecting", directory))?;
    let client = cluster.admin_client()?;
    let values = secrets(&client).await;
    let has_values = values.is_some();
    let redactor = Redactor::new(values.unwrap_or_default());
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, redactor.text(text)).map_err(Error::file("writing", &path))
    };
    let settings = serde_json::to_string_pretty(&cluster.settings)
        .map_err(|source| Error::Settings { path: cluster.root.clone(), source })?;
    write("settings.json", &settings)?;
    for (command, name) in
        [("status", "status.txt"), ("timeline", "timeline.txt"), ("version", "version.txt")]
    {
        write(name, &output(&cluster, command))?;
    }
    for node in std::iter::once(cluster.clone()).chain(cluster.members()?) {
        for role in [Role::Supervisor].iter().chain(node.roles()) {
            if let Ok(text) = sys::process::tail(&role.log(&node), LINES) {
                write(&format!("{}-{}.log", node.settings.node_name, role.name()), &text)?;
            }
        }
    }
    for kind in &KINDS {
        let text = if has_values {
            objects(&client, kind).await
        } else {
            "# left out, because the values of Secrets cannot be read\n".to_owned()
        };
        write(&format!("{}.yaml", kind.plural), &text)?;
    }
    println!(
        "{} shows the state of cluster {}; look at it before you share it",
        directory.display(),
        cluster.name
    );
    Ok(())
}

/// Returns the output of a command of this binary.
fn output(cluster: &Cluster, command: &str) -> String {
    let mut windlass = Command::new(cluster.binary());
    windlass.arg(command);
    if command != "version" {
        windlass.arg("--name").arg(&cluster.name).arg("--root").arg(&cluster.root);
    }
    match windlass.output() {
        Ok(output) => {
            let both = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&both).into_owned()
        }
        Err(error) => format!("{command}: {error}"),
    }
}

/// Returns the objects of a kind as YAML, or the error.
async fn objects(client: &Client, kind: &Resource) -> String {
    let options = ListOptions::default();
    let list = tokio::time::timeout(ANSWER, client.list::<Value>(kind, "", &options)).await;
    let mut items = match list {
        Ok(Ok(list)) => list.items,
        Ok(Err(error)) => return format!("# {error}\n"),
        Err(_) => return format!("# no answer within {ANSWER:?}\n"),
    };
    items.iter_mut().for_each(redact::strip);
    api_config::yaml::to_string_all(&items).unwrap_or_else(|error| format!("# {error}\n"))
}

/// Returns the values of all Secrets. Without an answer of the API, the bundle contains no objects, and logs are
/// redacted by form only.
async fn secrets(client: &Client) -> Option<Vec<Vec<u8>>> {
    let options = ListOptions::default();
    let secrets = Resource::SECRETS;
    let list = tokio::time::timeout(ANSWER, client.list::<Value>(&secrets, "", &options)).await;
    let items = list.ok()?.ok()?.items;
    let data = items.iter().filter_map(|secret| secret.at("data").as_object());
    let values = data.flat_map(|data| data.values()).filter_map(Value::as_str);
    Some(values.filter_map(|value| data_encoding::BASE64.decode(value.as_bytes()).ok()).collect())
}
