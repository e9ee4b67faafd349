//! Creates the service account `default` in every namespace.

use client::{Error, Resource, WorkQueue};
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    shared::Watched,
    views::{Namespace, ServiceAccount},
};

/// Reports whether the account must be created.
fn plan(namespace: Option<&Namespace>, account: Option<&ServiceAccount>) -> bool {
    namespace.is_some_and(|ns| ns.status.phase != "Terminating" && !ns.metadata.terminating())
        && account.is_none()
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let namespaces = context.watch::<Namespace>(Resource::NAMESPACES);
    let accounts = context.watch::<ServiceAccount>(Resource::SERVICE_ACCOUNTS);
    namespaces.on_key(&queue);
    let retries = queue.clone();
    accounts.on(move |change| {
        if let (None, Some(old)) = (change.new, change.old)
            && old.metadata.name == "default"
        {
            retries.add(old.metadata.namespace.clone());
        }
    });
    let waits = vec![synced(&namespaces), synced(&accounts)];
    let state = (context.clone(), namespaces, accounts);
    context.run(&queue, 1, waits, state, |(context, namespaces, accounts), key| async move {
        reconcile(&context, &namespaces, &accounts, &key).await
    });
}

async fn reconcile(
    context: &Context,
    namespaces: &Watched<Namespace>,
    accounts: &Watched<ServiceAccount>,
    name: &str,
) -> Result<(), Error> {
    let account = accounts.get(&format!("{name}/default"));
    if !plan(namespaces.get(name).as_deref(), account.as_deref()) {
        return Ok(());
    }
    let account = json!({"metadata": {"name": "default", "namespace": name}});
    match context.client.create::<_, Value>(&Resource::SERVICE_ACCOUNTS, name, &account).await {
        Err(error)
            if error.is_already_exists() || crate::api_error::namespace_is_terminating(&error) =>
        {
            Ok(())
        }
        other => other.map(drop),
    }
}
