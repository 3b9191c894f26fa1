//! The values of the chart: every promise of values.schema.json is kept, which is found by breaking each of them.

use serde_json::{Value, json};

use crate::support::manifests::{manifests, read, render};

/// Breaks all of the schema's patterns.
const NO_PATTERN: &str = " !";

struct Broken {
    values: Value,
    /// Where the error is, as the schema's check names it.
    place: String,
    /// A part of what it says.
    said: &'static str,
}

struct Walk {
    schema: Value,
    broken: Vec<Broken>,
}

impl Walk {
    /// Values that have only this one.
    fn within(path: &[String], value: Value) -> Value {
        path.iter()
            .rev()
            .fold(value, |inner, name| match name.parse::<usize>() {
                Ok(_) => json!([inner]),
                Err(_) => json!({ name: inner }),
            })
    }

    fn add_broken(&mut self, path: &[String], value: Value, said: &'static str) {
        let place = path
            .iter()
            .map(|name| format!("/{name}"))
            .collect::<String>();
        self.broken.push(Broken {
            values: Self::within(path, value),
            place,
            said,
        });
    }

    fn add_broken_type(&mut self, path: &[String], meant: &Value) {
        // A text, a number and a list: one of them is of no type that is meant.
        let types = meant
            .as_array()
            .cloned()
            .unwrap_or_else(|| vec![meant.clone()]);
        let wrong = if types.contains(&json!("array")) {
            json!("x")
        } else {
            json!([])
        };
        // The values of a chart are a table, whatever its schema says.
        if !path.is_empty() {
            self.add_broken(path, wrong, "want ");
        }
    }

    fn walk(&mut self, path: &[String], schema: &Value) {
        if let Some(reference) = schema["$ref"].as_str() {
            let name = reference.rsplit('/').next().unwrap();
            let definition = self.schema["definitions"][name].clone();
            return self.walk(path, &definition);
        }
        let below = |name: &str| {
            path.iter()
                .cloned()
                .chain([name.to_owned()])
                .collect::<Vec<_>>()
        };
        for (keyword, meant) in schema.as_object().unwrap() {
            let number = || meant.as_i64().unwrap();
            let long = |count: i64| vec![json!("x"); usize::try_from(count).unwrap()];
            match keyword.as_str() {
                "type" => self.add_broken_type(path, meant),
                "enum" => self.add_broken(path, json!("nonsense"), "must be one of"),
                "minimum" => self.add_broken(path, json!(number() - 1), "minimum"),
                "maximum" => self.add_broken(path, json!(number() + 1), "maximum"),
                "pattern" => self.add_broken(path, json!(NO_PATTERN), "match pattern"),
                "minLength" => self.add_broken(path, json!(""), "minLength"),
                "maxLength" => self.add_broken(
                    path,
                    json!("x".repeat(usize::try_from(number() + 1).unwrap())),
                    "maxLength",
                ),
                "minItems" => self.add_broken(path, json!([]), "minItems"),
                "maxItems" => self.add_broken(path, json!(long(number() + 1)), "maxItems"),
                "minProperties" => self.add_broken(path, emptied(path), "minProperties"),
                "required" => {
                    let names = meant
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|name| name.as_str().unwrap());
                    names.for_each(|name| {
                        self.add_broken(path, without(path, name), "missing propert")
                    });
                }
                "additionalProperties" if *meant == json!(false) => {
                    self.add_broken(path, json!({ "nonsense": 1 }), "additional properties");
                }
                "additionalProperties" => self.walk(&below("x"), meant),
                "items" => self.walk(&below("0"), meant),
                "properties" => meant
                    .as_object()
                    .unwrap()
                    .iter()
                    .for_each(|(name, inner)| self.walk(&below(name), inner)),
                "$schema" | "title" | "description" | "definitions" => {}
                other => panic!("{path:?}: this test does not know how to break {other}"),
            }
        }
    }
}

/// A table without this value. Lists are not merged with those of the chart, and tables are; null takes a value of those away.
fn without(path: &[String], name: &str) -> Value {
    let in_a_list = path.contains(&"0".to_owned());
    if in_a_list {
        json!({})
    } else {
        json!({ name: null })
    }
}

/// The plans of the chart are merged with those that are given; `null` takes one away.
fn emptied(path: &[String]) -> Value {
    if path == ["plans"] {
        json!({ "free": null })
    } else {
        json!({})
    }
}

#[test]
fn every_promise_of_the_values_is_refused_when_it_is_broken() {
    let schema: Value =
        serde_json::from_str(&read("deploy/helm/tollgate/values.schema.json")).unwrap();
    let mut walk = Walk {
        schema: schema.clone(),
        broken: Vec::new(),
    };
    walk.walk(&[], &schema);
    assert!(
        walk.broken.len() > 150,
        "only {} promises",
        walk.broken.len()
    );
    let values: Vec<&Value> = walk.broken.iter().map(|broken| &broken.values).collect();
    let said = manifests(
        &["values", "deploy/helm/tollgate"],
        &serde_json::to_string(&values).unwrap(),
    )
    .unwrap();
    let said: Vec<String> = serde_json::from_str(&said).unwrap();
    assert_eq!(said.len(), values.len());
    for (broken, said) in walk.broken.iter().zip(said) {
        let found = said.contains(&format!("at '{}", broken.place)) && said.contains(broken.said);
        assert!(
            found,
            "{} is not refused at {} for {:?}: {said:?}",
            broken.values, broken.place, broken.said
        );
    }
}

/// What values mean together.
#[test]
fn values_that_contradict_each_other_are_refused() {
    let redis = "store: { url: 'redis://redis:6379/0' }";
    for (values, said) in [
        ("{}".to_owned(), "store.url is missing"),
        (
            "{ store: { url: 'memory:' } }".to_owned(),
            "each replica counts for itself",
        ),
        (
            "{ store: { url: 'memory:' }, replicas: 1, autoscaling: { enabled: true } }".to_owned(),
            "each replica counts for itself",
        ),
        (
            "{ store: { url: 'redis://:secret@redis:6379/0' } }".to_owned(),
            "does not match pattern",
        ),
        (
            format!("{{ {redis}, autoscaling: {{ minReplicas: 5, maxReplicas: 4 }} }}"),
            "minReplicas is above",
        ),
        (
            format!("{{ {redis}, tls: {{ requireClientCertificate: true }} }}"),
            "needs tls.secretName",
        ),
        (
            format!("{{ {redis}, tls: {{ secretName: t, clientNames: [a] }} }}"),
            "is of no use",
        ),
        (format!("{{ {redis}, store2: 1 }}"), "store2"),
        (
            format!(
                "{{ {redis}, config: {{ store: {{ url: 'redis://:secret@redis:6379/0' }} }} }}"
            ),
            "does not match pattern",
        ),
        (
            format!("{{ {redis}, logLevel: loud }}"),
            "does not match pattern",
        ),
        (
            format!("{{ {redis}, logLevel: 'info,' }}"),
            "does not match pattern",
        ),
        (
            format!("{{ {redis}, ports: {{ grpc: 9464 }} }}"),
            "two of the ports are equal ({\"grpc\":9464,\"metrics\":9464})",
        ),
        (
            format!("{{ {redis}, http: {{ enabled: true }}, ports: {{ http: 50051 }} }}"),
            "two of the ports are equal",
        ),
        (
            format!("{{ {redis}, prometheusRule: {{ enabled: true }} }}"),
            "needs serviceMonitor.enabled",
        ),
    ] {
        let error = render(&values).expect_err(&values);
        assert!(error.contains(said), "{values}: {error}");
    }
}
