//! The plugin `kubernetes`: answers names of Services, endpoints and Pods.

use std::{net::IpAddr, path::PathBuf, sync::Arc};

use api_meta::Selector;
use futures_util::future::BoxFuture;
use hickory_proto::{
    op::ResponseCode,
    rr::{Name, Record, RecordType},
};

use crate::{
    chain::{Answer, Context, Failure, Next, Plugin, Request},
    directive::{CorefileError, Directive, Fallthrough, longest},
    options::{ApiServer, KubernetesOptions, PodMode},
    zone::{self, Alias, Zone, is_reverse},
};

#[derive(Debug)]
pub(crate) struct Kubernetes(pub(crate) Arc<KubernetesOptions>);

/// The error before the objects of the cluster are loaded.
#[derive(Debug, thiserror::Error)]
#[error("kubernetes: the objects of the cluster are not loaded yet")]
struct NotSynced;

/// Parses the options of a directive.
pub(crate) fn parse(
    directive: &Directive,
    zones: &[Name],
) -> Result<KubernetesOptions, CorefileError> {
    let zones = directive.zones_or(directive.arguments(), zones)?;
    let mut parsed = KubernetesOptions { zones, ttl: 5, ..KubernetesOptions::default() };
    let (mut endpoint, mut tls) = (None, None);
    for option in &directive.body {
        match (option.name(), option.arguments()) {
            ("pods", [mode]) => {
                parsed.pods = match mode.as_str() {
                    "disabled" => PodMode::Disabled,
                    "insecure" => PodMode::Insecure,
                    "verified" => PodMode::Verified,
                    _ => return option.fail("it is disabled, insecure or verified"),
                }
            }
            ("ttl", [text]) => {
                parsed.ttl = option.number(text)?;
                if parsed.ttl > 3600 {
                    return option.fail("it is at most 3600");
                }
            }
            ("fallthrough", _) => parsed.fallthrough = Fallthrough::parse(option)?,
            ("endpoint_pod_names", []) => parsed.endpoint_pod_names = true,
            ("noendpoints", []) => parsed.no_endpoints = true,
            ("ignore", [what]) if what == "empty_service" => parsed.ignores_empty_services = true,
            ("namespaces", names @ [_, ..]) => {
                parsed.namespaces.extend(names.iter().map(|name| name.as_str().into()))
            }
            ("labels", words @ [_, ..]) => parsed.labels = Some(selector(option, words)?),
            ("namespace_labels", words @ [_, ..]) => {
                parsed.namespace_labels = Some(selector(option, words)?)
            }
            ("kubeconfig", [path]) => {
                parsed.api = ApiServer::Kubeconfig { path: path.into(), context: None }
            }
            ("kubeconfig", [path, context]) => {
                parsed.api =
                    ApiServer::Kubeconfig { path: path.into(), context: Some(context.clone()) };
            }
            ("endpoint", [url]) if url.starts_with("http://") || url.starts_with("https://") => {
                endpoint = Some(url.clone())
            }
            ("endpoint", _) => {
                return option.fail("it needs one URL, as in https://192.0.2.1:6443");
            }
            ("tls", [certificate, key, ca]) => {
                tls = Some([certificate, key, ca].map(PathBuf::from))
            }
            _ => {
                return option.unknown(
                    "kubernetes",
                    "pods, ttl, fallthrough, endpoint_pod_names, noendpoints, ignore empty_service, namespaces, \
                     labels, namespace_labels, kubeconfig, endpoint and tls",
                );
            }
        }
    }
    if !parsed.namespaces.is_empty() && parsed.namespace_labels.is_some() {
        return directive.fail("namespaces and namespace_labels exclude each other");
    }
    if let (Some(url), ApiServer::Default) = (endpoint, &parsed.api) {
        parsed.api = ApiServer::Endpoint { url, tls };
    }
    Ok(parsed)
}

fn selector(option: &Directive, words: &[String]) -> Result<Selector, CorefileError> {
    words.join(" ").parse().or_else(|error| option.fail(format!("{error}")))
}

impl Kubernetes {
    fn origin(&self, name: &Name) -> Option<&Name> {
        longest(&self.0.zones, name)
    }

    /// Returns a zone that can be transferred now.
    fn transferable(&self, zone: &Name, context: &Context) -> Option<&Name> {
        let mut zones = self.0.zones.iter().filter(|served| !is_reverse(served));
        zones.find(|served| *served == zone).filter(|_| (context.is_synced)())
    }
}

impl Plugin for Kubernetes {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        let Some(origin) =
            self.origin(request.name()).filter(|_| request.is_internet() && !request.is_transfer())
        else {
            return next.answer(request);
        };
        if !(next.context().is_synced)() {
            return Box::pin(async { Err(Failure::new(ResponseCode::ServFail, NotSynced)) });
        }
        let index = next.context().index();
        let zone = Zone { options: &self.0, origin, index: &index };
        let mut reply = request.authoritative(ResponseCode::NoError, Vec::new());
        match zone.answer(request.name(), request.kind()) {
            zone::Answer::NoSuchName if self.0.fallthrough.covers(request.name()) => {
                drop(index);
                return next.answer(request);
            }
            zone::Answer::NoSuchName => {
                reply.metadata.response_code = ResponseCode::NXDomain;
                reply.authorities = vec![zone.soa(origin)];
            }
            zone::Answer::Records { answers, additionals } => {
                if answers.is_empty() {
                    reply.authorities = vec![zone.soa(origin)];
                }
                (reply.answers, reply.additionals) = (answers, additionals);
            }
            zone::Answer::Alias(alias) => {
                let Alias { record, target } = *alias;
                reply.answers = vec![record];
                if request.kind() != RecordType::CNAME {
                    drop(index);
                    return Box::pin(async move {
                        if let Some(found) = next.look_up(request, target, request.kind()).await {
                            reply.answers.extend(found.answers);
                        }
                        Ok(Some(reply))
                    });
                }
            }
        }
        Box::pin(async move { Ok(Some(reply)) })
    }

    fn transfer(&self, zone: &Name, context: &Context) -> Option<Vec<Record>> {
        let origin = self.transferable(zone, context)?;
        let index = context.index();
        Some(Zone { options: &self.0, origin, index: &index }.transfer())
    }

    fn transfer_soa(&self, zone: &Name, context: &Context) -> Option<Record> {
        let origin = self.transferable(zone, context)?;
        let index = context.index();
        Some(Zone { options: &self.0, origin, index: &index }.soa(origin))
    }

    /// Returns the search path of the Pod with this address: its namespace, the Services, the zone and the root.
    fn search_path(&self, client: IpAddr, context: &Context) -> Option<Vec<Name>> {
        let origin = self.0.zones.iter().find(|zone| !is_reverse(zone))?;
        let index = context.index();
        let namespace = index.namespace_of_pod(client)?;
        let zone = Zone { options: &self.0, origin, index: &index };
        let services = zone.below("svc")?;
        Some(vec![zone.below(&format!("{namespace}.svc"))?, services, origin.clone(), Name::root()])
    }

    fn metadata(&self, label: &str, request: &Request, context: &Context) -> Option<String> {
        let label = label.strip_prefix("kubernetes/")?;
        if label == "client-namespace" {
            return context
                .index()
                .namespace_of_pod(request.client.ip().to_canonical())
                .map(str::to_owned);
        }
        let origin = self.origin(request.name()).filter(|origin| !is_reverse(origin))?;
        let lower = request.name().to_lowercase();
        let below = usize::from(lower.num_labels() - origin.num_labels());
        let labels: Vec<&str> = lower
            .iter()
            .take(below)
            .map(|label| std::str::from_utf8(label).ok())
            .collect::<Option<_>>()?;
        let (kind, rest) = labels.split_last()?;
        let (namespace, rest) = rest.split_last()?;
        let service = rest.last().filter(|_| *kind == "svc");
        let value = match (label, rest) {
            ("kind", _) => *kind,
            ("namespace", _) => *namespace,
            ("service", _) => service?,
            ("endpoint", [endpoint, _]) => endpoint,
            ("port-name", [port, _, _]) => port.strip_prefix('_')?,
            ("protocol", [_, protocol, _]) => protocol.strip_prefix('_')?,
            _ => return None,
        };
        matches!(*kind, "svc" | "pod").then(|| value.to_owned())
    }
}
