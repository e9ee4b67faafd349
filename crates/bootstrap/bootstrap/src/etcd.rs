//! Manages the members of a cluster's etcd through its JSON gateway, which every release since 3.4 serves. Read
//! [`Etcd`] first.

use std::{sync::Arc, time::Duration};

use api_config::kubeadm::ExternalEtcd;
use api_meta::Tree as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bootstrap_core::{Layout, constants::ETCD_PEER_PORT, manifests::EtcdMember, net};
use client::{Client, HttpTransport, ListOptions, Resource, TlsMaterial};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{Error, SnapshotError, cluster::USER_AGENT, error::io};

const POLL: Duration = Duration::from_millis(500);
/// The deadline for an answer of one endpoint.
const ANSWER: Duration = Duration::from_secs(5);

/// An etcd member. Its id is a string, because JSON numbers cannot hold 64 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The member id in decimal.
    pub id: String,
    /// The name; empty until the member has started.
    pub name: String,
    /// The peer URLs.
    pub peer_urls: Vec<String>,
    /// `true` if the member does not vote yet.
    pub is_learner: bool,
}

impl Member {
    fn is_at(&self, peer_url: &str) -> bool {
        self.peer_urls.iter().any(|url| url == peer_url)
    }
}

/// A client of one or several etcd endpoints.
pub struct Etcd {
    clients: Vec<(String, Client)>,
}

impl Etcd {
    /// Creates a client with kubeadm's etcd certificates.
    pub fn new(endpoints: &[String], layout: &Layout) -> Result<Self, Error> {
        let read = |base: &str, extension: &str| {
            let path = layout.pki(base, extension);
            std::fs::read(&path).map(Some).map_err(io("read", &path))
        };
        let tls = TlsMaterial {
            ca: read("etcd/ca", "crt")?,
            certificate: read("etcd/healthcheck-client", "crt")?,
            key: read("etcd/healthcheck-client", "key")?,
            insecure: false,
        };
        Self::with(endpoints, &tls)
    }

    /// Creates a client for an external etcd with the files that the configuration names.
    pub fn external(etcd: &ExternalEtcd) -> Result<Self, Error> {
        let read = |path: &str| match path {
            "" => Ok(None),
            path => std::fs::read(path).map(Some).map_err(io("read", path.as_ref())),
        };
        let tls = TlsMaterial {
            ca: read(&etcd.ca_file)?,
            certificate: read(&etcd.cert_file)?,
            key: read(&etcd.key_file)?,
            insecure: false,
        };
        let https: Vec<String> =
            etcd.endpoints.iter().filter(|e| e.starts_with("https://")).cloned().collect();
        Self::with(&https, &tls)
    }

    /// Creates a client of members at `https://` endpoints, which are tried in turn until one answers.
    pub fn with(endpoints: &[String], tls: &TlsMaterial) -> Result<Self, Error> {
        let clients = endpoints.iter().map(|endpoint| {
            let failed = |reason: String| Error::Client { path: endpoint.into(), reason };
            let config = tls.client_config().map_err(|e| failed(e.to_string()))?;
            let transport =
                HttpTransport::new(endpoint, config, None).map_err(|e| failed(e.to_string()))?;
            Ok((endpoint.clone(), Client::new(Arc::new(transport), USER_AGENT)))
        });
        Ok(Self { clients: clients.collect::<Result<_, Error>>()? })
    }

    /// Calls the endpoints in turn until one answers.
    async fn call(
        &self,
        operation: &'static str,
        path: &str,
        body: &Value,
    ) -> Result<Value, Error> {
        let mut last = Error::NoEtcdEndpoint { operation };
        for (endpoint, client) in &self.clients {
            let call =
                client.call(http::Method::POST, path, "application/json", body.to_string().into());
            // etcd never answers a membership change that was lost with its leader. The repeated call makes the change.
            last = match timeout(ANSWER, call).await {
                Ok(Ok(response)) => {
                    let url = format!("{endpoint}{path}");
                    let tree = serde_json::from_slice(&response);
                    return tree.map_err(|source| Error::EtcdResponse { url, source });
                }
                Ok(Err(source)) => {
                    Error::Api { operation, subject: format!("of etcd at {endpoint}"), source }
                }
                Err(_) => no_answer(endpoint, operation),
            };
        }
        Err(last)
    }

    /// Returns the version of every endpoint, in order.
    pub async fn versions(&self) -> Result<Vec<String>, Error> {
        let mut versions = Vec::new();
        for (endpoint, client) in &self.clients {
            let failed = |source| Error::Api {
                operation: "read the version",
                subject: format!("of etcd at {endpoint}"),
                source,
            };
            let call = client.call(http::Method::GET, "/version", "", Default::default());
            let response = timeout(ANSWER, call).await;
            let response = response.map_err(|_| no_answer(endpoint, "report its version"))?;
            let value: Value =
                serde_json::from_slice(&response.map_err(failed)?).unwrap_or_default();
            versions.push(value.text("etcdserver").to_owned());
        }
        Ok(versions)
    }

    /// Returns all members, learners included.
    pub async fn members(&self) -> Result<Vec<Member>, Error> {
        Ok(members_of(&self.call("list the members", "/v3/cluster/member/list", &json!({})).await?))
    }

    /// Returns the status of the first endpoint that answers.
    pub async fn status(&self) -> Result<Status, Error> {
        let response = self.call("ask the status", "/v3/maintenance/status", &json!({})).await?;
        Ok(Status {
            version: response.text("version").to_owned(),
            member: response.text("header.member_id").to_owned(),
            leader: response.text("leader").to_owned(),
        })
    }

    /// Reports whether a key with this prefix exists.
    pub async fn has_keys(&self, prefix: &str) -> Result<bool, Error> {
        // The end of the range is the prefix with its last byte incremented; no prefix ends in 0xFF.
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last = last.saturating_add(1);
        }
        let body = json!({
            "key": STANDARD.encode(prefix), "range_end": STANDARD.encode(end), "limit": 1, "keys_only": true,
        });
        let response = self.call("look for keys", "/v3/kv/range", &body).await?;
        Ok(!response.items("kvs").is_empty())
    }

    /// Transfers leadership from the first endpoint that answers, which must be the leader, to member `to`.
    pub async fn hand_over(&self, to: &str) -> Result<(), Error> {
        let body = json!({ "targetID": to });
        self.call("transfer the leadership", "/v3/maintenance/transfer-leadership", &body).await?;
        Ok(())
    }

    /// Writes a snapshot of the first endpoint's database and returns its size in bytes.
    pub async fn snapshot(&self, to: &mut (dyn std::io::Write + Send)) -> Result<u64, Error> {
        let Some((endpoint, client)) = self.clients.first() else {
            return Err(Error::NoEtcdEndpoint { operation: "take a snapshot" });
        };
        let failed = |source| Error::Snapshot { endpoint: endpoint.clone(), source };
        let request = http::Request::post("/v3/maintenance/snapshot")
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(client::full("{}"))
            .map_err(|e| failed(SnapshotError::Body(e.into())))?;
        let response = timeout(ANSWER, client.request(request))
            .await
            .map_err(|_| no_answer(endpoint, "send a snapshot"))?
            .map_err(|e| failed(e.into()))?;
        if !response.status().is_success() {
            return Err(failed(SnapshotError::Status(response.status())));
        }
        let mut parts = SnapshotReader::default();
        let mut body = response.into_body();
        loop {
            let frame = timeout(ANSWER, body.frame()).await;
            let frame = frame.map_err(|_| no_answer(endpoint, "continue a snapshot"))?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|e| failed(SnapshotError::Body(e)))?;
            if let Ok(data) = frame.into_data() {
                parts.take(&data, to).map_err(failed)?;
            }
        }
        parts.end().map_err(failed)
    }

    /// Adds a learner and returns all members. etcd allows one learner at a time, so the call is retried while another
    /// member joins.
    pub async fn add_learner(
        &self,
        name: &str,
        peer_url: &str,
        patience: Duration,
    ) -> Result<Vec<EtcdMember>, Error> {
        let members = again(patience, move || async move {
            let members = self.members().await?;
            if members.iter().any(|m| m.is_at(peer_url)) {
                return Ok(members);
            }
            let body = json!({"peerURLs": [peer_url], "isLearner": true});
            self.call("add a member", "/v3/cluster/member/add", &body).await?;
            self.members().await
        });
        let members = members.await?.into_iter().flat_map(|m| {
            // The new member has no name until it starts.
            let name = if m.is_at(peer_url) { name.to_owned() } else { m.name };
            m.peer_urls.into_iter().map(move |peer_url| EtcdMember { name: name.clone(), peer_url })
        });
        Ok(members.filter(|m| !m.name.is_empty()).collect())
    }

    /// Promotes the learner once it has caught up.
    pub async fn promote(&self, peer_url: &str, patience: Duration) -> Result<(), Error> {
        let promoted = again(patience, move || async move {
            let members = self.members().await?;
            let Some(member) = members.iter().find(|m| m.is_at(peer_url)) else { return Ok(false) };
            if member.is_learner {
                let body = json!({"ID": member.id});
                self.call("promote a member", "/v3/cluster/member/promote", &body).await?;
            }
            Ok(true)
        });
        match promoted.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::NoEtcdMember(peer_url.to_owned())),
            Err(e) => Err(Error::NotUp {
                what: format!("the etcd member at {peer_url}"),
                waited: format!("{}s", patience.as_secs()),
                cause: e.to_string(),
            }),
        }
    }

    /// Removes a started member with this address. A member that has not started belongs to an interrupted join.
    pub(crate) async fn remove_lost(
        &self,
        peer_url: &str,
        patience: Duration,
    ) -> Result<(), Error> {
        let members = again(patience, move || self.members()).await?;
        match members.iter().find(|m| m.is_at(peer_url) && !m.name.is_empty()) {
            Some(member) => {
                tracing::info!(
                    member = member.name,
                    peer_url,
                    "removing an etcd member that has lost its data"
                );
                self.remove(&member.id, patience).await
            }
            None => Ok(()),
        }
    }

    /// Removes a member. etcd refuses for some seconds after a membership change, until it knows which members are
    /// healthy.
    pub async fn remove(&self, id: &str, patience: Duration) -> Result<(), Error> {
        again(patience, move || async move {
            let body = json!({ "ID": id });
            match self.call("remove a member", "/v3/cluster/member/remove", &body).await {
                Err(e) if self.members().await?.iter().any(|m| m.id == id) => Err(e),
                _ => Ok(()),
            }
        })
        .await
    }
}

/// The status of a member. Ids are strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The version of etcd.
    pub version: String,
    /// The id of the member.
    pub member: String,
    /// The id of the leader; zero or empty without a leader.
    pub leader: String,
}

impl Status {
    /// Returns `true` if the member is the leader.
    pub fn leads(&self) -> bool {
        !self.member.is_empty() && self.member != "0" && self.member == self.leader
    }
}

/// A snapshot from the gateway: one JSON object per line, each with a part of the data.
#[derive(Default)]
struct SnapshotReader {
    line: Vec<u8>,
    received: u64,
    remaining: u64,
}

impl SnapshotReader {
    /// The maximum length of a line in bytes. etcd's parts have 32 KiB.
    const LONGEST: usize = 4 << 20;

    fn take(&mut self, data: &[u8], to: &mut dyn std::io::Write) -> Result<(), SnapshotError> {
        for piece in data.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + piece.len() > Self::LONGEST {
                return Err(SnapshotError::TooLong);
            }
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.part(to)?;
            }
        }
        Ok(())
    }

    fn part(&mut self, to: &mut dyn std::io::Write) -> Result<(), SnapshotError> {
        let line = std::mem::take(&mut self.line);
        let tree: Value = serde_json::from_slice(&line)?;
        if tree.get("error").is_some() {
            return Err(SnapshotError::Ended(tree.text("error.message").to_owned()));
        }
        let text = |field| tree.text(&["result", field]);
        let part = STANDARD.decode(text("blob"))?;
        self.remaining = text("remaining_bytes").parse().unwrap_or(0);
        self.received += part.len() as u64;
        to.write_all(&part).map_err(SnapshotError::Write)
    }

    fn end(self) -> Result<u64, SnapshotError> {
        if self.line.is_empty() && self.remaining == 0 && self.received > 0 {
            Ok(self.received)
        } else {
            Err(SnapshotError::Truncated { received: self.received, remaining: self.remaining })
        }
    }
}

/// Retries until success, because etcd has no leader for a moment after each membership change.
async fn again<T, F: Future<Output = Result<T, Error>>>(
    patience: Duration,
    attempt: impl FnMut() -> F,
) -> Result<T, Error> {
    rt::retry(patience, POLL, |_| true, attempt).await
}

fn no_answer(endpoint: &str, operation: &str) -> Error {
    Error::NotUp {
        what: format!("an answer of etcd at {endpoint}, asked to {operation},"),
        waited: format!("{}s", ANSWER.as_secs()),
        cause: "it may be without a leader, and its log says why (crictl logs, or /var/log/pods)"
            .to_owned(),
    }
}

fn members_of(response: &Value) -> Vec<Member> {
    let member = |m: &Value| Member {
        id: m.text("ID").to_owned(),
        name: m.text("name").to_owned(),
        peer_urls: m.texts("peerURLs").map(str::to_owned).collect(),
        is_learner: m.flag("isLearner"),
    };
    response.items("members").iter().map(member).collect()
}

/// Returns the peer URL of an address, in the form of `--initial-advertise-peer-urls`.
pub fn peer_url(address: &str) -> String {
    format!("https://{}", net::join_host_port(address, ETCD_PEER_PORT))
}

/// Returns the client URLs of the cluster's etcd Pods, from their annotations.
pub async fn endpoints(client: &Client) -> Result<Vec<String>, Error> {
    let options = ListOptions::labels("component=etcd,tier=control-plane");
    let pods =
        client.list::<Value>(&Resource::PODS, "kube-system", &options).await.map_err(|source| {
            Error::Api { operation: "list", subject: "etcd's Pods".to_owned(), source }
        })?;
    let annotation = "kubeadm.kubernetes.io/etcd.advertise-client-urls";
    let urls = pods.items.iter().filter_map(|pod| pod.annotation(annotation));
    Ok(urls.flat_map(|urls| urls.split(',')).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_snapshot_in_parts_and_detects_truncation() {
        let line = |left: &str, blob: &str| {
            format!("{{\"result\":{{\"remaining_bytes\":\"{left}\",\"blob\":\"{blob}\"}}}}\n")
        };
        let read = |text: &str, size: usize| {
            let (mut parts, mut out) = (SnapshotReader::default(), Vec::new());
            let read = text.as_bytes().chunks(size).try_for_each(|data| parts.take(data, &mut out));
            let length = read.and_then(|()| parts.end()).map_err(|error| error.to_string())?;
            Ok::<_, String>((length, out))
        };
        let whole = line("3", "YWJj") + &line("0", "ZGVm") + "{\"result\":{\"blob\":\"Zw==\"}}\n";
        for size in [1, 7, 1000] {
            assert_eq!(read(&whole, size), Ok((7, b"abcdefg".to_vec())));
        }
        assert!(read(&line("3", "YWJj"), 10).unwrap_err().contains("3 are missing"));
        assert!(read("", 10).is_err() && read(&whole[..whole.len() - 4], 10).is_err());
        let error = line("3", "YWJj") + "{\"error\":{\"message\":\"no space\"}}\n";
        assert!(read(&error, 10).unwrap_err().contains("no space"));
        assert!(
            read(&"x".repeat(SnapshotReader::LONGEST + 1), 1 << 16).unwrap_err().contains("longer")
        );
    }

    #[test]
    fn keeps_64_bit_member_ids() {
        let answer = json!({"header": {}, "members": [
            {"ID": "10276657743932975437", "name": "a", "peerURLs": ["https://10.0.0.1:2380"]},
            {"ID": "9", "peerURLs": ["https://10.0.0.2:2380"], "isLearner": true},
        ]});
        let members = members_of(&answer);
        assert_eq!(
            (members[0].id.as_str(), members[0].is_learner),
            ("10276657743932975437", false)
        );
        assert_eq!((members[1].name.as_str(), members[1].is_learner), ("", true));
        assert_eq!(members_of(&json!({})), []);
        assert_eq!(peer_url("fd00::1"), "https://[fd00::1]:2380");
    }
}
