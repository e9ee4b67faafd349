//! Warns about overlapping file paths in one volume: two keys at the same path, or a path below another file.

use std::{collections::HashMap, ops::Range};

use api_meta::{Tree as _, Warnings};
use serde_json::Value;

/// A file and its source; the source is empty for volumes with one source.
struct File {
    path: String,
    source: String,
}

impl File {
    fn words(&self) -> String {
        if self.source.is_empty() {
            format!("{:?}", self.path)
        } else {
            format!("{:?} ({})", self.path, self.source)
        }
    }

    /// Reports whether this file has the other one's path or a parent of it.
    fn contains(&self, other: &File) -> bool {
        let rest = other.path.strip_prefix(&self.path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Adds the warnings for all volumes of a Pod.
pub(super) fn of(spec: &Value, warnings: &mut Warnings) {
    for volume in spec.items("volumes") {
        for (kind, shown) in [
            ("configMap", format!("ConfigMap {:?}", volume.text("configMap.name"))),
            ("secret", format!("Secret {:?}", volume.text("secret.secretName"))),
            ("downwardAPI", "DownwardAPI".to_owned()),
        ] {
            let overlaps = Overlaps::new(volume, &shown, files(volume.at(kind), ""));
            overlaps.warn(0..overlaps.files.len(), warnings);
        }
        let sources = volume.items("projected.sources");
        let (mut all, mut ends) = (Vec::new(), Vec::with_capacity(sources.len()));
        for source in sources {
            all.extend(projected_files(source));
            ends.push(all.len());
        }
        let overlaps = Overlaps::new(volume, "Projected", all);
        let mut start = 0;
        for (source, end) in sources.iter().zip(ends) {
            if source.as_object().is_none_or(serde_json::Map::is_empty) {
                let name = volume.text("name");
                warnings.push(format!("volume {name:?} (Projected) has no sources provided"));
            }
            overlaps.warn(start..end, warnings);
            start = end;
        }
    }
}

/// The files of one volume as a tree of their paths.
struct Overlaps<'a> {
    volume: &'a Value,
    of: &'a str,
    files: Vec<File>,
    /// The nodes in path order, so that each node precedes its descendants.
    nodes: Vec<Node>,
    /// The node of each file; `None` for a file without a path.
    node_of: Vec<Option<usize>>,
    /// The previous file with the same path and source, by file.
    previous: Vec<Option<usize>>,
    /// The number of distinct files before each file.
    distinct: Vec<usize>,
}

/// The files at one path.
struct Node {
    /// The files in order of their index.
    files: Vec<usize>,
    /// The nearest ancestor with a file.
    parent: Option<usize>,
    /// The index after the last descendant.
    end: usize,
}

impl<'a> Overlaps<'a> {
    fn new(volume: &'a Value, of: &'a str, files: Vec<File>) -> Self {
        let (mut previous, mut distinct) = (Vec::new(), Vec::new());
        let mut last: HashMap<(&str, &str), usize> = HashMap::new();
        for (at, file) in files.iter().enumerate() {
            distinct.push(last.len());
            previous.push(last.insert((&file.path, &file.source), at));
        }
        let mut order: Vec<usize> =
            (0..files.len()).filter(|i| !files[*i].path.is_empty()).collect();
        order.sort_by(|a, b| files[*a].path.split('/').cmp(files[*b].path.split('/')));
        let mut nodes: Vec<Node> = Vec::new();
        let mut node_of = vec![None; files.len()];
        // The previous node and its ancestors.
        let mut open: Vec<usize> = Vec::new();
        for file in order {
            let at_top = |open: &[usize], nodes: &[Node]| {
                open.last().map(|top| &files[nodes[*top].files[0]])
            };
            while at_top(&open, &nodes).is_some_and(|top| !top.contains(&files[file])) {
                if let Some(top) = open.pop() {
                    nodes[top].end = nodes.len();
                }
            }
            match at_top(&open, &nodes) {
                Some(top) if top.path == files[file].path => {}
                _ => {
                    let (parent, at) = (open.last().copied(), nodes.len());
                    nodes.push(Node { files: Vec::new(), parent, end: 0 });
                    open.push(at);
                }
            }
            node_of[file] = open.last().copied();
            if let (Some(top), None) = (open.last(), previous[file]) {
                nodes[*top].files.push(file);
            }
        }
        let count = nodes.len();
        open.into_iter().for_each(|top| nodes[top].end = count);
        Self { volume, of, files, nodes, node_of, previous, distinct }
    }

    /// Warns about the files in a range that overlap with earlier files.
    fn warn(&self, range: Range<usize>, warnings: &mut Warnings) {
        for at in range {
            for other in self.earlier(at, warnings.room()) {
                let (new, old) = (self.files[at].words(), self.files[other].words());
                let (name, of) = (self.volume.text("name"), self.of);
                warnings
                    .push(format!("volume {name:?} ({of}): overlapping paths: {new} with {old}"));
            }
        }
    }

    /// Returns the first `room` earlier files that overlap with a file. Of files with the same path and source, it
    /// returns only the first. A repeated file is not compared again with files before its previous occurrence.
    ///
    /// A path has at most as many ancestors as slashes, so the total work is bounded by the length of all paths.
    fn earlier(&self, file: usize, room: usize) -> Vec<usize> {
        let mut found = Vec::new();
        let Some(node) = self.node_of[file].filter(|_| room > 0) else { return found };
        let before = self.previous[file];
        let is_third = before.is_some_and(|before| self.previous[before].is_some());
        if is_third && before.is_some_and(|at| self.distinct[at] == self.distinct[file]) {
            return found;
        }
        let mut add = |node: &Node| {
            let new = node.files.partition_point(|other| Some(*other) < before);
            found.extend(node.files[new..].iter().take_while(|other| **other < file).take(room));
        };
        let mut above = Some(node);
        while let Some(at) = above {
            add(&self.nodes[at]);
            above = self.nodes[at].parent;
        }
        self.nodes[node + 1..self.nodes[node].end].iter().for_each(add);
        found.sort_unstable();
        found.truncate(room);
        found
    }
}

fn file(path: &str, source: &str) -> File {
    File { path: path.trim_end_matches('/').to_owned(), source: source.to_owned() }
}

fn files(source: &Value, of: &str) -> Vec<File> {
    source.items("items").iter().map(|item| file(item.text("path"), of)).collect()
}

fn projected_files(source: &Value) -> Vec<File> {
    let named = |kind: &str, word: &str| {
        let name = source.at(kind).text("name");
        files(source.at(kind), &format!("{word} {name:?}"))
    };
    let one = |path: &str, of: &str| {
        if source.blank(path) { Vec::new() } else { vec![file(source.text(path), of)] }
    };
    let bundle = match source.text("clusterTrustBundle.name") {
        "" => source.text("clusterTrustBundle.signerName"),
        name => name,
    };
    [
        named("configMap", "ConfigMap"),
        named("secret", "Secret"),
        files(source.at("downwardAPI"), "DownwardAPI"),
        one("serviceAccountToken.path", "ServiceAccountToken"),
        one("clusterTrustBundle.path", &format!("ClusterTrustBundle {bundle:?}")),
        one("podCertificate.certificateChainPath", "PodCertificate chain"),
        one("podCertificate.keyPath", "PodCertificate key"),
        one("podCertificate.credentialBundlePath", "PodCertificate credential bundle"),
    ]
    .into_iter()
    .flatten()
    .collect()
}
