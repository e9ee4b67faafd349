//! Rewrites all objects of the encrypted resources, so that the API server encrypts them with its current key.

use client::{ApiResource, Client, ListOptions, Resource};
use encryption::parse_resource;
use serde::Deserialize;
use serde_json::Value;

use api_meta::{GroupResource, Tree as _};

use crate::secrets_error::SecretsError;

/// The number of objects on a page of a list.
const PAGE: u64 = 500;

#[derive(Deserialize)]
struct Group {
    #[serde(rename = "preferredVersion")]
    preferred: GroupVersion,
}

#[derive(Deserialize)]
struct GroupVersion {
    version: String,
}

/// Finds the resources of a configuration in the API. `*.GROUP` stands for all resources of a group.
pub(super) async fn find(client: &Client, names: &[String]) -> Result<Vec<Resource>, SecretsError> {
    let mut found = Vec::new();
    for name in names {
        let wanted = parse_resource(name);
        let served = served(client, &wanted).await?;
        if served.is_empty() {
            return Err(SecretsError::NotServed(name.clone()));
        }
        found.extend(served);
    }
    Ok(found)
}

async fn served(client: &Client, wanted: &GroupResource) -> Result<Vec<Resource>, SecretsError> {
    let not_found = |error: client::Error| {
        if error.is_not_found() { Ok(Vec::new()) } else { Err(error.into()) }
    };
    let (path, version) = if wanted.group.is_empty() {
        ("/api/v1".to_owned(), "v1".to_owned())
    } else {
        let group = format!("/apis/{}", wanted.group);
        match client.get_raw::<Group>(&group).await {
            Ok(read) => (format!("{group}/{}", read.preferred.version), read.preferred.version),
            Err(error) => return not_found(error),
        }
    };
    let all = match client.resources(&path, &wanted.group, &version).await {
        Ok(all) => all,
        Err(error) => return not_found(error),
    };
    let is_wanted = |one: &ApiResource| {
        let is_named = *wanted.resource == *one.resource.plural || &*wanted.resource == "*";
        is_named && one.supports(&["list", "update"])
    };
    Ok(all.into_iter().filter(is_wanted).map(|one| one.resource).collect())
}

/// Writes every object unchanged. The API server skips such a write unless the value was encrypted with another key. An
/// object that another client writes or deletes at the same time needs no rewrite. Returns the number of objects.
pub(super) async fn rewrite(
    client: &Client,
    resources: &[Resource],
) -> Result<usize, SecretsError> {
    let (mut count, mut failed) = (0, Vec::new());
    for resource in resources {
        let mut options = ListOptions { limit: Some(PAGE), ..ListOptions::default() };
        loop {
            let page = client.list::<Value>(resource, "", &options).await?;
            for object in &page.items {
                count += 1;
                let (namespace, name) =
                    (object.text("metadata.namespace"), object.text("metadata.name"));
                match client.update::<_, Value>(resource, namespace, name, object).await {
                    Ok(_) => {}
                    Err(error) if error.is_conflict() || error.is_not_found() => {}
                    Err(error) => failed.push((resource.object(namespace, name, ""), error)),
                }
            }
            options.continue_token = page.metadata.r#continue;
            if options.continue_token.is_empty() {
                break;
            }
        }
    }
    let failures = failed.len();
    match failed.into_iter().next() {
        None => Ok(count),
        Some((object, source)) => {
            Err(SecretsError::Rewrite { count: failures, object, source: Box::new(source) })
        }
    }
}
