//! The access of control planes to a state store on a server. A proxy on the host of the machines serves S3's API, with
//! a key per cluster that reaches only that cluster. The key to the store itself stays on the host.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use instances::{Companion, Fleet, FleetSpec, machine::TOLD};
use kops_api::Spec as _;
use pki::{AltName, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use serde_json::{Value, json};
use serve::{Limits, ServerTls};
use vfs::{AccessKey, Api, Environment, Store};

use crate::{CommandEnvironment, Error, registry::Registry};

const PORT: u16 = 3989;
const NAME: &str = "store";
/// The file with the access to the store: on the host with its own key, on control planes with the cluster's key.
const FILE: &str = "store.json";
const AUTHORITY: &str = "store-ca.crt";
/// The environment variables that configure the access to S3.
const VARIABLES: [&str; 12] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SHARED_CREDENTIALS_FILE",
    "KOPS_STATE_S3_ACL",
    "S3_ACCESS_KEY_ID",
    "S3_ENDPOINT",
    "S3_REGION",
    "S3_SECRET_ACCESS_KEY",
];
/// The lifetime of the proxy's certificate; a restart creates a new one.
const PERIOD: std::time::Duration = std::time::Duration::from_secs(455 * 86_400);

/// Reads a file with the location of a store and the access to it.
fn settings(path: &Path) -> Result<Option<Value>, Error> {
    let shown = path.display().to_string();
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|e| Error::Usage(format!("reading {shown}: {e}"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::file("reading", &shown)(error)),
    }
}

fn variable(settings: &Value, name: &str) -> Option<String> {
    let value = settings.at("environment").and_then(|all| all.get(name)).and_then(Value::as_str);
    value.map(str::to_owned)
}

/// Opens a store: a control plane uses its settings file, other machines their environment.
pub(crate) fn open(url: &str) -> Result<Store, Error> {
    let settings =
        if url.starts_with("file:") { None } else { settings(&Path::new(TOLD).join(FILE))? };
    Ok(match settings {
        Some(settings) => Store::open_in(url, &|name| variable(&settings, name))?,
        None => Store::open(url)?,
    })
}

/// Returns the store of a fleet's cluster; `None` if it is a directory of this machine.
pub(crate) fn registry(fleet: &Fleet) -> Result<Option<Registry>, Error> {
    let settings = settings(&fleet.root.join(FILE))?;
    let open = |settings: Value| Registry::open(settings.text("url"), &environment_of(&settings));
    settings.map(open).transpose()
}

/// Returns an environment in which the stored variables override this process'.
fn environment_of(settings: &Value) -> impl Fn(&str) -> Option<String> + '_ {
    |name| variable(settings, name).or_else(|| std::env::var(name).ok())
}

/// Returns the companion process that serves the store to control planes.
pub(crate) fn companion(fleet: &Fleet) -> Companion {
    let root = fleet.root.display().to_string();
    let args = ["internal", "store", "--root", &root].map(str::to_owned);
    Companion { name: NAME.to_owned(), args: args.into() }
}

/// Writes the settings for the access to the store, from the host and from control planes.
pub(crate) fn write_settings(
    registry: &Registry,
    fleet: &Fleet,
    wanted: &FleetSpec,
    around: &CommandEnvironment<'_>,
) -> Result<(), Error> {
    if registry.is_here() {
        return Ok(());
    }
    let path = fleet.root.join(FILE);
    let old = settings(&path)?.unwrap_or_default();
    let kept = |field: &str, made: &dyn Fn() -> String| match old.text(field) {
        "" => made(),
        kept => kept.to_owned(),
    };
    let id = kept("id", &|| rt::id().replace('-', ""));
    let secret =
        kept("secret", &|| data_encoding::HEXLOWER.encode(&rt::random::<u128>().to_be_bytes()));
    let known = |name: &&'static str| Some((*name, (around.environment)(name)?));
    let environment: BTreeMap<_, _> = VARIABLES.iter().filter_map(known).collect();
    let gateway = wanted.gateway()?;
    let own = json!({
        "url": registry.url(), "cluster": wanted.cluster, "listen": gateway, "id": id, "secret": secret,
        "environment": environment,
    });
    pki::write_file(&path, own.to_string().as_bytes(), pki::KEY_MODE)?;
    let shared = json!({"environment": {
        "S3_ENDPOINT": format!("https://{}", SocketAddr::new(gateway, PORT)),
        "S3_ACCESS_KEY_ID": id, "S3_SECRET_ACCESS_KEY": secret,
        "AWS_CA_BUNDLE": format!("{TOLD}/{AUTHORITY}"),
    }});
    let authority = fleet.authority()?.cert().to_pem();
    pki::write_file(&fleet.told().join(AUTHORITY), authority.as_bytes(), pki::KEY_MODE)?;
    let path = fleet.told().join(FILE);
    Ok(pki::write_file(&path, shared.to_string().as_bytes(), pki::KEY_MODE)?)
}

/// Runs `internal store`: serves control planes their cluster's part of the store, until shutdown.
pub async fn serve_store(root: PathBuf, tasks: &rt::Tasks) -> Result<(), Error> {
    let fleet = Fleet::at(root);
    let settings = settings(&fleet.root.join(FILE))?.unwrap_or_default();
    let (api, address) = build_server(&settings, &environment_of(&settings))?;
    let spec = LeafSpec {
        subject: Subject::new(NAME),
        alt_names: vec![AltName::Ip(address)],
        usage: Usage::Server,
    };
    let validity = Validity::starting(rt::now(), PERIOD);
    let (cert, key) = fleet.authority()?.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity)?;
    let tls = ServerTls::new(cert.to_pem().as_bytes(), key.to_pem()?.as_bytes(), Vec::new())
        .map_err(|e| Error::Usage(e.to_string()))?;
    let address = SocketAddr::new(address, PORT);
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener = listener.map_err(Error::file("listening on", &address.to_string()))?;
    serve::serve(listener, Some(tls), Limits::default(), Arc::new(api), tasks.clone()).await;
    Ok(())
}

/// Builds the server: the whole bucket under its own names, and one key that reads its cluster and writes its backups.
fn build_server(settings: &Value, environment: Environment<'_>) -> Result<(Api, IpAddr), Error> {
    let url = settings.text("url");
    let wrong = || {
        Error::Usage(format!(
            "the fleet's {FILE} names no store on a server ({url:?}); run kops update cluster --yes to write it"
        ))
    };
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let (cluster, id) = (settings.text("cluster"), settings.text("id"));
    let address = settings.text("listen").parse().map_err(|_| wrong())?;
    if scheme == "file" || [cluster, id, settings.text("secret")].contains(&"") {
        return Err(wrong());
    }
    let prefix = match prefix.trim_matches('/') {
        "" => format!("{cluster}/"),
        prefix => format!("{prefix}/{cluster}/"),
    };
    let right = AccessKey {
        id: id.to_owned(),
        secret: settings.text("secret").to_owned(),
        writes: Some(format!("{prefix}backups/")),
        prefix,
    };
    let store = Store::open_in(&format!("{scheme}://{bucket}"), environment)?;
    Ok((Api::new(store, bucket, vec![right]), address))
}

#[cfg(test)]
mod tests {
    use http::Request;
    use serve::{Body, Handler as _, full};

    use super::*;

    fn complete_settings() -> Value {
        json!({
            "url": "s3://bucket/kops", "cluster": "a.local", "listen": "127.0.0.1", "id": "key", "secret": "hidden",
            "environment": {
                "S3_ENDPOINT": "http://127.0.0.1:1", "S3_ACCESS_KEY_ID": "own", "S3_SECRET_ACCESS_KEY": "own",
            },
        })
    }

    #[tokio::test]
    async fn rejects_requests_without_the_clusters_key() {
        let settings = complete_settings();
        let (api, address) = build_server(&settings, &|name| variable(&settings, name)).unwrap();
        assert_eq!(address.to_string(), "127.0.0.1");
        // The upstream store does not answer, so an admitted request would fail late.
        for authorization in [
            "",
            "AWS4-HMAC-SHA256 Credential=own/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00",
        ] {
            let request =
                Request::get("/bucket/kops/a.local/pki/private/kubernetes-ca/keyset.yaml")
                    .header("host", "x")
                    .header("x-amz-date", "20260101T000000Z")
                    .header("authorization", authorization);
            let body: Body = full("");
            let answer = api.handle(request.body(body).unwrap()).await;
            assert!(answer.status().is_client_error(), "{authorization}: {}", answer.status());
        }
    }

    #[test]
    fn rejects_incomplete_settings() {
        for (field, value) in [
            ("url", ""),
            ("url", "file:///state"),
            ("url", "s3://a"),
            ("cluster", ""),
            ("id", ""),
            ("secret", ""),
            ("listen", "everywhere"),
        ] {
            let mut settings = complete_settings();
            settings.set(field, value);
            assert!(
                build_server(&settings, &|name| variable(&settings, name)).is_err(),
                "{field} {value}"
            );
        }
    }
}
