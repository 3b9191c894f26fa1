//! What docs/openapi.json says of an answer, and whether the answer is so.

use super::*;

/// The description, and which of its answers were seen.
pub(super) struct Description {
    pub(super) document: Value,
    pub(super) seen: BTreeSet<String>,
}

impl Description {
    /// Follows `$ref`.
    pub(super) fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value.get("$ref").and_then(Value::as_str) {
            Some(reference) => self
                .document
                .pointer(reference.strip_prefix('#').unwrap())
                .unwrap_or_else(|| panic!("{reference}")),
            None => value,
        }
    }

    /// What does not fit the schema, if anything. Knows the words that the document uses, and panics at others.
    pub(super) fn misfit(&self, schema: &Value, value: &Value) -> Option<String> {
        let schema = self.resolve(schema).as_object().unwrap();
        for (word, rule) in schema {
            let fits = match word.as_str() {
                "type" => is_of_type(rule, value),
                "enum" => rule.as_array().unwrap().contains(value),
                "minimum" => value.is_null() || value.as_u64().unwrap() >= rule.as_u64().unwrap(),
                "maximum" => value.as_u64().unwrap() <= rule.as_u64().unwrap(),
                "required" => rule
                    .as_array()
                    .unwrap()
                    .iter()
                    .all(|name| value.get(name.as_str().unwrap()).is_some()),
                "additionalProperties" => value
                    .as_object()
                    .unwrap()
                    .keys()
                    .all(|name| schema["properties"].get(name).is_some()),
                "properties" => {
                    let mut given = rule
                        .as_object()
                        .unwrap()
                        .iter()
                        .filter_map(|(name, rule)| Some((rule, value.get(name)?)));
                    if let Some(misfit) = given.find_map(|(rule, value)| self.misfit(rule, value)) {
                        return Some(misfit);
                    }
                    true
                }
                "items" => {
                    if let Some(misfit) = value
                        .as_array()
                        .unwrap()
                        .iter()
                        .find_map(|value| self.misfit(rule, value))
                    {
                        return Some(misfit);
                    }
                    true
                }
                "description" | "default" => true,
                other => panic!("the word {other}"),
            };
            if !fits {
                return Some(format!("{value} does not fit {word}: {rule}"));
            }
        }
        None
    }

    /// Panics when a header field of the answer is not as this response is described.
    pub(super) fn check_headers(&self, response: &Value, reply: &Reply, place: &str) {
        for (header, value) in reply
            .headers()
            .filter(|(header, _)| !OF_EVERY_ANSWER.contains(header))
        {
            let described = self.resolve(&response["headers"][header]);
            assert!(
                described.is_object(),
                "{place}: {header} is not described: {reply:?}"
            );
            let typed = match described["schema"]["type"].as_str() {
                Some("integer") => Value::from(value.parse::<u64>().unwrap()),
                _ => Value::from(value),
            };
            assert_eq!(self.misfit(&described["schema"], &typed), None, "{header}");
        }
    }

    /// Panics when the body of the answer is not as this response is described. Returns its media type.
    pub(super) fn check_body<'a>(
        &self,
        response: &Value,
        reply: &'a Reply,
        place: &str,
    ) -> &'a str {
        let media = reply
            .header("content-type")
            .unwrap()
            .split(';')
            .next()
            .unwrap();
        let schema = &response["content"][media]["schema"];
        assert!(
            schema.is_object(),
            "{place}: {media} is not described: {reply:?}"
        );
        let body = if media.ends_with("json") {
            serde_json::from_str(&reply.body).unwrap()
        } else {
            Value::from(reply.body.as_str())
        };
        assert_eq!(self.misfit(schema, &body), None, "{place}: {reply:?}");
        media
    }

    /// Panics when the answer to a request for this path by this method is not as described.
    pub(super) fn check(&mut self, method: &str, path: &str, reply: &Reply) {
        let operations = self.document["paths"][path].as_object().unwrap();
        // What gets 405 is not a method of the path, and each of them tells of it.
        let method = method.to_lowercase();
        let tellers: Vec<String> = operations
            .keys()
            .filter(|known| !operations.contains_key(&method) || **known == method)
            .cloned()
            .collect();
        let responses = operations[&tellers[0]]["responses"].clone();
        let status = reply.status.to_string();
        let of_class = format!("{}XX", &status[..1]);
        // A denial with a status of the caller's choice tells the limits, an error does not.
        let tells_limits = reply
            .headers()
            .any(|(header, _)| header.contains("ratelimit"));
        let is_denial = tells_limits && reply.status != 200 && reply.status != 429;
        let name = if is_denial { &of_class } else { &status };
        let response = self.resolve(&responses[name]);
        let place = format!("{method} {path}");
        assert!(
            response.is_object(),
            "{place}: {name} is not described: {reply:?}"
        );
        self.check_headers(response, reply, &place);
        if !reply.body.is_empty() {
            let media = self.check_body(response, reply, &place);
            self.seen.extend(
                tellers
                    .iter()
                    .map(|teller| format!("{teller} {path} {name} {media}")),
            );
        }
        for teller in &tellers {
            self.seen.insert(format!("{teller} {path} {name}"));
            let headers = reply
                .headers()
                .map(|(header, _)| header)
                .filter(|header| !OF_EVERY_ANSWER.contains(header));
            self.seen
                .extend(headers.map(|header| format!("{teller} {path} {name} {header}")));
        }
    }

    /// Everything that the document describes, in the words of `seen`. HEAD has no bodies.
    pub(super) fn described(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        let operations = |(path, operations): (&String, &Value)| {
            let operations = operations.as_object().unwrap().clone();
            let path = path.clone();
            operations
                .into_iter()
                .map(move |(method, operation)| (method, path.clone(), operation))
        };
        for (method, path, operation) in self.document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(operations)
        {
            for (status, response) in operation["responses"].as_object().unwrap() {
                let response = self.resolve(response);
                let names = |field: &str| {
                    response[field]
                        .as_object()
                        .map(|object| object.keys().cloned().collect::<Vec<_>>())
                };
                let media = names("content").filter(|_| method != "head");
                let named = names("headers").into_iter().chain(media).flatten();
                all.extend(named.map(|name| format!("{method} {path} {status} {name}")));
                all.insert(format!("{method} {path} {status}"));
            }
        }
        all
    }
}

/// Whether the value has this type, or one of these.
pub(super) fn is_of_type(rule: &Value, value: &Value) -> bool {
    if let Some(several) = rule.as_array() {
        return several.iter().any(|one| is_of_type(one, value));
    }
    match rule.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_u64() || value.is_i64(),
        other => panic!("the type {other}"),
    }
}
