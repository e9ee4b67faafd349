//! Serves a state store on a server to control planes. A proxy on the host of the machines serves S3's API, with
//! a key per cluster that reaches only that cluster. The key to the store itself stays on the host.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use api_meta::Tree as _;
use instances::{Companion, Fleet, FleetSpec, machine::TRUSTED_FILES};
use kops_node::{AUTHORITY_FILE, SETTINGS_FILE, read_settings, variable};
use kops_store::Registry;
use pki::{AltName, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use serde_json::{Value, json};
use serve::{Limits, ServerTls};
use vfs::{AccessKey, Api, Environment, Store};

use crate::error::Error;

const PORT: u16 = 3989;
const NAME: &str = "store";
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

/// Returns the store of a fleet's cluster; `None` if it is a directory of this machine.
pub(crate) fn open_registry(fleet: &Fleet) -> Result<Option<Registry>, Error> {
    let settings = read_settings(&fleet.root.join(SETTINGS_FILE))?;
    let open = |settings: Value| Registry::open(settings.text("url"), &environment_of(&settings));
    Ok(settings.map(open).transpose()?)
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

/// Rejects a store that machines could not read: those without S3's API need keys of their own.
pub fn check_store(registry: &Registry) -> Result<(), Error> {
    if registry.is_local() || registry.url().starts_with("s3:") {
        return Ok(());
    }
    Err(Error::UnreadableStore { url: registry.url().to_owned() })
}

/// Writes the settings for the access to the store, from the host and from control planes.
pub fn write_settings(
    registry: &Registry,
    fleet: &Fleet,
    spec: &FleetSpec,
    environment: Environment<'_>,
) -> Result<(), Error> {
    if registry.is_local() {
        return Ok(());
    }
    let path = fleet.root.join(SETTINGS_FILE);
    let old = read_settings(&path)?.unwrap_or_default();
    let text_or = |field: &str, new: &dyn Fn() -> String| match old.text(field) {
        "" => new(),
        text => text.to_owned(),
    };
    let id = text_or("id", &|| rt::id().replace('-', ""));
    let secret =
        text_or("secret", &|| data_encoding::HEXLOWER.encode(&rt::random::<u128>().to_be_bytes()));
    let variable = |name: &&'static str| Some((*name, environment(name)?));
    let variables: BTreeMap<_, _> = VARIABLES.iter().filter_map(variable).collect();
    let gateway = spec.gateway()?;
    let own = json!({
        "url": registry.url(), "cluster": spec.cluster, "listen": gateway, "id": id, "secret": secret,
        "environment": variables,
    });
    pki::write_file(&path, own.to_string().as_bytes(), pki::KEY_MODE)?;
    let shared = json!({"environment": {
        "S3_ENDPOINT": format!("https://{}", SocketAddr::new(gateway, PORT)),
        "S3_ACCESS_KEY_ID": id, "S3_SECRET_ACCESS_KEY": secret,
        "AWS_CA_BUNDLE": format!("{TRUSTED_FILES}/{AUTHORITY_FILE}"),
    }});
    let authority = fleet.authority()?.cert().to_pem();
    pki::write_file(
        &fleet.trusted_files().join(AUTHORITY_FILE),
        authority.as_bytes(),
        pki::KEY_MODE,
    )?;
    let path = fleet.trusted_files().join(SETTINGS_FILE);
    Ok(pki::write_file(&path, shared.to_string().as_bytes(), pki::KEY_MODE)?)
}

/// Runs `internal store`: serves control planes their cluster's part of the store, until shutdown.
pub async fn serve_store(root: PathBuf, tasks: &rt::Tasks) -> Result<(), Error> {
    let fleet = Fleet::at(root);
    let settings = read_settings(&fleet.root.join(SETTINGS_FILE))?.unwrap_or_default();
    let (api, address) = build_server(&settings, &environment_of(&settings))?;
    let spec = LeafSpec {
        subject: Subject::new(NAME),
        alt_names: vec![AltName::Ip(address)],
        usage: Usage::Server,
    };
    let validity = Validity::starting(rt::now(), PERIOD);
    let (cert, key) = fleet.authority()?.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity)?;
    let tls = ServerTls::new(cert.to_pem().as_bytes(), key.to_pem()?.as_bytes(), Vec::new())?;
    let address = SocketAddr::new(address, PORT);
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener =
        listener.map_err(kops_store::Error::file("listening on", &address.to_string()))?;
    serve::serve(listener, Some(tls), Limits::default(), Arc::new(api), tasks.clone()).await;
    Ok(())
}

/// Builds the server: the whole bucket under its own names, and one key that reads its cluster and writes its backups.
fn build_server(settings: &Value, environment: Environment<'_>) -> Result<(Api, IpAddr), Error> {
    let url = settings.text("url");
    let wrong = || Error::StoreSettings { url: url.to_owned() };
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
    let key = AccessKey {
        id: id.to_owned(),
        secret: settings.text("secret").to_owned(),
        writes: Some(format!("{prefix}backups/")),
        prefix,
    };
    let store = Store::open_in(&format!("{scheme}://{bucket}"), environment)?;
    Ok((Api::new(store, bucket, vec![key]), address))
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
    fn rejects_stores_that_machines_cannot_read() {
        let environment = |name: &str| match name {
            "S3_ENDPOINT" | "GS_ENDPOINT" => Some("http://127.0.0.1:1".to_owned()),
            key if key.contains("_KEY") => Some("key".to_owned()),
            _ => None,
        };
        for (url, is_allowed) in
            [("file:///state", true), ("s3://bucket", true), ("gs://bucket/kops", false)]
        {
            let registry = Registry::open(url, &environment).unwrap();
            assert_eq!(check_store(&registry).is_ok(), is_allowed, "{url}");
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
            settings.put(field, value);
            assert!(
                build_server(&settings, &|name| variable(&settings, name)).is_err(),
                "{field} {value}"
            );
        }
    }
}
