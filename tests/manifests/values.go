package main

import (
	"encoding/json"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"sigs.k8s.io/yaml"
)

// schemaErrors tells for each of the values in the JSON array of standard input what the schema of the chart says against it, as a
// JSON array of texts, empty where it says nothing.
func schemaErrors(path string) (string, error) {
	text, err := input()
	if err != nil {
		return "", err
	}
	var all []chartutil.Values
	if err := json.Unmarshal(text, &all); err != nil {
		return "", err
	}
	loaded, err := loader.Load(path)
	if err != nil {
		return "", err
	}
	found := []string{}
	for _, values := range all {
		whole, err := chartutil.CoalesceValues(loaded, values)
		if err != nil {
			return "", err
		}
		said := ""
		if err := chartutil.ValidateAgainstSchema(loaded, whole); err != nil {
			said = err.Error()
		}
		found = append(found, said)
	}
	output, err := json.Marshal(found)
	return string(output), err
}

// asJSON is standard input as one JSON array of its manifests.
func asJSON() (string, error) {
	all, err := manifests()
	if err != nil {
		return "", err
	}
	var output []json.RawMessage
	for _, manifest := range all {
		text, err := yaml.YAMLToJSONStrict(manifest.Bytes)
		if err != nil {
			return "", err
		}
		output = append(output, text)
	}
	text, err := json.Marshal(output)
	return string(text), err
}
