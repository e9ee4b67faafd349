//! Access to AWS: the client of a cluster's region, and the queries of its existing resources and machines.

use std::collections::BTreeMap;

use aws::Client;
use kops_api::Object;
use kops_core::{
    Cluster as _,
    direct::{self, Answers, Call, ExistingResources, Group, Scope},
};
use serde_json::Value;

use crate::error::Error;

/// Opens the client of a cluster's region.
pub fn open_client(
    user: &Object,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Client, Error> {
    let normalized = user.normalized();
    let region = normalized.region().ok_or_else(|| {
        let problem = "has no subnet with a zone; its region is that of its subnets";
        kops_store::Error::object("cluster", user.name(), problem)
    })?;
    Ok(Client::open(region, environment)?)
}

/// Queries all existing resources.
pub async fn query_resources(client: &Client, scope: &Scope) -> Result<ExistingResources, Error> {
    let mut responses = Answers::default();
    loop {
        let questions = direct::next_queries(scope, &responses);
        if questions.is_empty() {
            return Ok(ExistingResources::read(scope, &responses));
        }
        for call in questions {
            // The page after the first one only has records after the wanted names.
            let result = match call.operation {
                "ListResourceRecordSets" => client
                    .call(call.service, call.operation, &call.parameters)
                    .await
                    .map(|page| vec![page]),
                _ => client.pages(call.service, call.operation, &call.parameters).await,
            };
            let pages = match result {
                Err(error) if error.is_absent() => vec![Value::Null],
                result => result?,
            };
            responses.add(call, pages);
        }
    }
}

/// Queries a cluster's own scaling groups with their machines, including detached ones, by name.
pub async fn query_groups(
    client: &Client,
    cluster: &str,
) -> Result<BTreeMap<String, Group>, Error> {
    let mut answers = Answers::default();
    for call in direct::group_queries(cluster) {
        let pages = client.pages(call.service, call.operation, &call.parameters).await?;
        answers.add(call, pages);
    }
    Ok(direct::groups(&answers, cluster))
}

/// Makes a call whose subject may be gone already.
pub async fn make_call(client: &Client, call: &Call) -> Result<(), Error> {
    match client.call(call.service, call.operation, &call.parameters).await {
        Err(error) if !error.is_absent() => Err(error.into()),
        _ => Ok(()),
    }
}
