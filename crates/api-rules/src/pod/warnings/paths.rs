//! Files of one volume that hide each other: two keys at one path, or one at a path through another.

use std::{collections::HashMap, ops::Range};

use api_meta::{Tree as _, Warnings};
use serde_json::Value;

/// A file, and what it comes of where a volume has several sources.
struct File {
    path: String,
    source: String,
}

impl File {
    fn words(&self) -> String {
        match self.source.is_empty() {
            true => format!("{:?}", self.path),
            false => format!("{:?} ({})", self.path, self.source),
        }
    }

    /// Reports whether this file is the other one or hides it.
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
            all.extend(projected(source));
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
    /// In the order of paths, so that a node is followed by those below it.
    nodes: Vec<Node>,
    /// Each file's node; none for a file without a path.
    node_of: Vec<Option<usize>>,
    /// The file before that is warned of in the same words.
    previous: Vec<Option<usize>>,
    /// The number of files before that differ in their words.
    distinct: Vec<usize>,
}

/// The files at one path.
struct Node {
    /// The first of those with the same words.
    files: Vec<usize>,
    /// The nearest node above.
    parent: Option<usize>,
    /// The first node behind this one that is not below it.
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
        // The node before and those above it.
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

    /// Warns of a range of files, each of which meets files before it.
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

    /// Returns the first `room` files before a file that it hides or that hide it. Of files with the same words it
    /// returns the first one, and only to the first of those that are warned of in the same words.
    ///
    /// A path has no more nodes above it than it has slashes, so all walks together are bounded by the paths' lengths.
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

fn projected(source: &Value) -> Vec<File> {
    let named = |kind: &str, word: &str| {
        let name = source.at(kind).text("name");
        files(source.at(kind), &format!("{word} {name:?}"))
    };
    let one = |path: &str, of: &str| match source.blank(path) {
        true => Vec::new(),
        false => vec![file(source.text(path), of)],
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
