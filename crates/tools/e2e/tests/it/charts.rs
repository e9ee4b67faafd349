//! helm installs, upgrades, rolls back and removes a chart.

use std::fs;

use e2e::shared;

const DEPLOYMENT: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .Release.Name }}
  labels:
    helm.sh/chart: {{ .Chart.Name }}
spec:
  replicas: {{ .Values.replicas }}
  selector:
    matchLabels:
      app: {{ .Release.Name }}
  template:
    metadata:
      labels:
        app: {{ .Release.Name }}
    spec:
      containers:
        - name: app
          image: app:{{ .Values.version }}
          ports:
            - containerPort: 8080
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .Release.Name }}
spec:
  selector:
    app: {{ .Release.Name }}
  ports:
    - port: 80
      targetPort: 8080
"#;

#[test]
fn installs_upgrades_rolls_back_and_removes_a_chart() {
    let s = shared("charts");
    let directory = tempfile::tempdir().unwrap();
    let chart = directory.path().join("web");
    fs::create_dir_all(chart.join("templates")).unwrap();
    fs::write(chart.join("Chart.yaml"), "apiVersion: v2\nname: web\nversion: 0.1.0\n").unwrap();
    fs::write(chart.join("values.yaml"), "replicas: 1\nversion: 1\n").unwrap();
    fs::write(chart.join("templates/all.yaml"), DEPLOYMENT).unwrap();
    let chart = chart.display();
    let image = "{.spec.template.spec.containers[0].image}";

    s.helm(&format!("install site {chart} --wait --timeout 90s")).ok();
    assert_eq!(s.field("deployment site", image), "app:1");
    s.helm(&format!("upgrade site {chart} --set version=2,replicas=2 --wait --timeout 90s")).ok();
    assert_eq!(s.field("deployment site", image), "app:2");
    assert_eq!(s.field("deployment site", "{.status.readyReplicas}"), "2");
    let list = s.helm("list").ok();
    assert!(list.contains("site") && list.contains("deployed"), "{list}");
    s.helm("rollback site 1 --wait --timeout 90s").ok();
    assert_eq!(s.field("deployment site", image), "app:1");
    s.helm("uninstall site --wait --timeout 90s").ok();
    s.until("get deployments,services -o name", str::is_empty);
}
