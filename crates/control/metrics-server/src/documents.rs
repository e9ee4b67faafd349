//! Formats metrics: objects, tables and discovery documents, as upstream does. Pure functions.

use std::{
    collections::BTreeMap,
    time::{Duration, UNIX_EPOCH},
};

use api_meta::{Quantity, QuantityFormat, Timestamp};
use serde_json::{Value, json};

use crate::points::ResourceUsage;

pub(crate) const GROUP: &str = "metrics.k8s.io";
pub(crate) const VERSION: &str = "metrics.k8s.io/v1beta1";

/// A node or a Pod whose usage is reported.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
}

/// The usage of a node, or of a Pod by its containers.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) subject: Subject,
    pub(crate) parts: Vec<(String, ResourceUsage)>,
}

fn cpu(nanocores: u64) -> String {
    Quantity::parse(&format!("{nanocores}n")).map(|q| q.to_string()).unwrap_or_default()
}

fn memory(bytes: u64) -> String {
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    Quantity::new(bytes, QuantityFormat::BinarySi).to_string()
}

fn usage(used: &ResourceUsage) -> Value {
    json!({ "cpu": cpu(used.nanocores), "memory": memory(used.bytes) })
}

/// Formats a duration as Go does, to the millisecond.
fn window(millis: i64) -> String {
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    let seconds = format!("{}.{:03}", rest / 1000, rest % 1000);
    let seconds = seconds.trim_end_matches('0').trim_end_matches('.');
    match minutes {
        0 => format!("{seconds}s"),
        minutes if minutes < 60 => format!("{minutes}m{seconds}s"),
        minutes => format!("{}h{}m{seconds}s", minutes / 60, minutes % 60),
    }
}

fn time(millis: i64) -> String {
    let seconds = u64::try_from(millis / 1000).unwrap_or_default();
    Timestamp::from(UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
}

impl Metrics {
    fn is_pod(&self) -> bool {
        !self.subject.namespace.is_empty()
    }

    /// Returns the earliest usage of the parts, whose time is reported.
    fn earliest(&self) -> Option<&ResourceUsage> {
        self.parts.iter().map(|(_, used)| used).min_by_key(|used| used.at)
    }

    fn metadata(&self, now: i64) -> Value {
        let subject = &self.subject;
        let mut metadata = json!({ "name": subject.name, "creationTimestamp": time(now) });
        if let Some(fields) = metadata.as_object_mut() {
            if self.is_pod() {
                fields.insert("namespace".to_owned(), json!(subject.namespace));
            }
            if !subject.labels.is_empty() {
                fields.insert("labels".to_owned(), json!(subject.labels));
            }
        }
        metadata
    }

    /// Returns the object without its kind, as an item of a list.
    fn item(&self, now: i64) -> Value {
        let (at, long) = self.earliest().map_or((now, 0), |used| (used.at, used.window));
        let (metadata, timestamp, window) = (self.metadata(now), time(at), window(long));
        if self.is_pod() {
            let containers: Vec<Value> = self
                .parts
                .iter()
                .map(|(name, used)| json!({ "name": name, "usage": usage(used) }))
                .collect();
            return json!({ "metadata": metadata, "timestamp": timestamp, "window": window, "containers": containers });
        }
        let usage = self.parts.first().map(|(_, used)| usage(used));
        json!({ "metadata": metadata, "timestamp": timestamp, "window": window, "usage": usage })
    }

    pub(crate) fn object(&self, now: i64) -> Value {
        let mut object = self.item(now);
        if let Some(fields) = object.as_object_mut() {
            let kind = if self.is_pod() { "PodMetrics" } else { "NodeMetrics" };
            fields.insert("kind".to_owned(), json!(kind));
            fields.insert("apiVersion".to_owned(), json!(VERSION));
        }
        object
    }

    fn row(&self, now: i64) -> Value {
        let sum = |of: fn(&ResourceUsage) -> u64| self.parts.iter().map(|(_, used)| of(used)).sum();
        let long = self.earliest().map_or(0, |used| used.window);
        json!({
            "cells": [self.subject.name, cpu(sum(|u| u.nanocores)), memory(sum(|u| u.bytes)), window(long)],
            "object": {
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": self.metadata(now),
            },
        })
    }
}

pub(crate) fn list(kind: &str, subjects: &[Metrics], now: i64) -> Value {
    let items: Vec<Value> = subjects.iter().map(|metrics| metrics.item(now)).collect();
    json!({ "kind": kind, "apiVersion": VERSION, "metadata": {}, "items": items })
}

/// Returns the metrics as a Table. The metrics-server names no columns if there are no rows.
pub(crate) fn table(subjects: &[Metrics], now: i64) -> Value {
    let column = |name: &str, format: &str, about: &str| {
        json!({
            "name": name, "type": "string", "format": format, "description": about, "priority": 0,
        })
    };
    let columns = [
        column("Name", "name", "Name of the resource"),
        column("cpu", "quantity", ""),
        column("memory", "quantity", ""),
        column("Window", "duration", ""),
    ];
    let rows: Vec<Value> = subjects.iter().map(|metrics| metrics.row(now)).collect();
    let columns: &[Value] = if rows.is_empty() { &[] } else { &columns };
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "columnDefinitions": columns, "rows": rows,
    })
}

fn group() -> Value {
    let version = json!({ "groupVersion": VERSION, "version": "v1beta1" });
    json!({ "name": GROUP, "versions": [version], "preferredVersion": version })
}

/// Returns the discovery document of a path, if it has one.
pub(crate) fn discovery(path: &str) -> Option<Value> {
    let resource = |name: &str, kind: &str, namespaced: bool| {
        json!({
            "name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"]
        })
    };
    match path {
        "/apis" => Some(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [group()] })),
        "/apis/metrics.k8s.io" => {
            let mut group = group();
            let fields = group.as_object_mut()?;
            fields.insert("kind".to_owned(), json!("APIGroup"));
            fields.insert("apiVersion".to_owned(), json!("v1"));
            Some(group)
        }
        "/apis/metrics.k8s.io/v1beta1" => Some(json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": VERSION,
            "resources": [resource("nodes", "NodeMetrics", false), resource("pods", "PodMetrics", true)],
        })),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web() -> Metrics {
        let subject = Subject {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            labels: BTreeMap::new(),
        };
        let used = |nanocores, bytes, at| ResourceUsage { nanocores, bytes, at, window: 15_250 };
        let parts = vec![
            ("app".to_owned(), used(5_000_000, 8 << 20, 1_700_000_002_000)),
            ("log".to_owned(), used(1_234_567, 1025, 1_700_000_001_500)),
        ];
        Metrics { subject, parts }
    }

    #[test]
    fn objects_and_tables_match_upstream() {
        let object = web().object(1_700_000_003_000);
        assert_eq!(
            object,
            json!({
                "kind": "PodMetrics", "apiVersion": VERSION,
                "metadata": {"name": "web", "namespace": "default", "creationTimestamp": "2023-11-14T22:13:23Z"},
                "timestamp": "2023-11-14T22:13:21Z", "window": "15.25s",
                "containers": [
                    {"name": "app", "usage": {"cpu": "5m", "memory": "8Mi"}},
                    {"name": "log", "usage": {"cpu": "1234567n", "memory": "1025"}},
                ],
            })
        );
        let table = table(&[web()], 0);
        assert_eq!(table["rows"][0]["cells"], json!(["web", "6234567n", "8389633", "15.25s"]));
        let names: Vec<&Value> =
            table["columnDefinitions"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
        assert_eq!(names, ["Name", "cpu", "memory", "Window"]);
        assert_eq!(self::table(&[], 0)["columnDefinitions"], json!([]));
    }
}
