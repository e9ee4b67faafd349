//! Publishes the ConfigMap `kube-root-ca.crt` in every namespace, with the CA that verifies the API server.

use api_meta::ObjectMeta;
use client::{Error, Resource, WorkQueue};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    shared::Watched,
    views::{self, Labels, Namespace},
};

const NAME: &str = "kube-root-ca.crt";
const KEY: &str = "ca.crt";

/// The compared fields of a ConfigMap. Of other ConfigMaps only the metadata is kept.
#[derive(Debug, Default)]
struct ConfigMap {
    metadata: ObjectMeta,
    /// `None` for other ConfigMaps.
    data: Option<Labels>,
}

impl<'de> Deserialize<'de> for ConfigMap {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let whole = views::ConfigMap::deserialize(deserializer)?;
        if whole.metadata.name == NAME {
            return Ok(Self { metadata: whole.metadata, data: Some(whole.data) });
        }
        let metadata = ObjectMeta {
            name: whole.metadata.name,
            namespace: whole.metadata.namespace,
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, data: None })
    }
}

#[derive(Debug, PartialEq)]
enum Plan {
    Nothing,
    Create,
    Restore,
}

fn plan(namespace: Option<&Namespace>, map: Option<&ConfigMap>, ca: &str) -> Plan {
    if namespace.is_none_or(|ns| ns.status.phase == "Terminating" || ns.metadata.terminating()) {
        return Plan::Nothing;
    }
    match map.and_then(|map| map.data.as_ref()) {
        None => Plan::Create,
        Some(data) if data.len() == 1 && data.get(KEY).is_some_and(|text| text == ca) => {
            Plan::Nothing
        }
        Some(_) => Plan::Restore,
    }
}

pub(crate) fn start(context: Context) {
    let Some(ca) = context.config.root_ca.clone() else {
        tracing::info!("no root CA is configured, so {NAME} is not published");
        return;
    };
    let queue = WorkQueue::default();
    let namespaces = context.watch::<Namespace>(Resource::NAMESPACES);
    let maps = context.watch::<ConfigMap>(Resource::CONFIG_MAPS);
    namespaces.on_key(&queue);
    let retries = queue.clone();
    maps.on(move |change| {
        if let Some(map) = change.old.or(change.new)
            && map.metadata.name == NAME
        {
            retries.add(map.metadata.namespace.clone());
        }
    });
    let waits = vec![synced(&namespaces), synced(&maps)];
    let state = (context.clone(), namespaces, maps, ca);
    context.run(&queue, 1, waits, state, |(context, namespaces, maps, ca), key| async move {
        reconcile(&context, &namespaces, &maps, &ca, &key).await
    });
}

async fn reconcile(
    context: &Context,
    namespaces: &Watched<Namespace>,
    maps: &Watched<ConfigMap>,
    ca: &str,
    namespace: &str,
) -> Result<(), Error> {
    let map = maps.get(&format!("{namespace}/{NAME}"));
    let desired = json!({
        "metadata": {"name": NAME, "namespace": namespace, "annotations": {"kubernetes.io/description":
            "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
             endpoints such as the internal service IP or kubernetes.default.svc. No other usage is \
             guaranteed across distributions of Kubernetes clusters."}},
        "data": {KEY: ca},
    });
    let resource = &Resource::CONFIG_MAPS;
    let done = match plan(namespaces.get(namespace).as_deref(), map.as_deref(), ca) {
        Plan::Nothing => return Ok(()),
        Plan::Create => context.client.create::<_, Value>(resource, namespace, &desired).await,
        Plan::Restore => {
            context.client.update::<_, Value>(resource, namespace, NAME, &desired).await
        }
    };
    match done {
        Err(error)
            if error.is_already_exists() || crate::api_error::namespace_is_terminating(&error) =>
        {
            Ok(())
        }
        other => other.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creates_and_restores_root_ca() {
        let active = Namespace::default();
        let map = |data: Value| -> ConfigMap {
            serde_json::from_value(json!({"metadata": {"name": NAME}, "data": data})).unwrap()
        };
        assert_eq!(plan(Some(&active), None, "pem"), Plan::Create);
        assert_eq!(plan(Some(&active), Some(&map(json!({"ca.crt": "pem"}))), "pem"), Plan::Nothing);
        assert_eq!(plan(Some(&active), Some(&map(json!({"ca.crt": "old"}))), "pem"), Plan::Restore);
        assert_eq!(
            plan(Some(&active), Some(&map(json!({"ca.crt": "pem", "x": "y"}))), "pem"),
            Plan::Restore
        );
        assert_eq!(plan(None, None, "pem"), Plan::Nothing);
    }
}
