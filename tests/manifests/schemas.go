package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

type object = map[string]interface{}

// schemas writes a file for each kind, with all that it refers to. A field that the schema does not name is an error.
func schemas(swagger, folder string, resources []string) error {
	text, err := os.ReadFile(swagger)
	if err != nil {
		return err
	}
	var document struct{ Definitions map[string]object }
	if err := json.Unmarshal(text, &document); err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, definition := range document.Definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]interface{})
		for _, kind := range kinds {
			closed := object{}
			collect(name, document.Definitions, closed)
			whole := object{"$ref": "#/definitions/" + name, "definitions": closed}
			if err := write(folder, kind.(object), whole); err != nil {
				return err
			}
		}
	}
	for _, resource := range resources {
		if err := custom(resource, folder); err != nil {
			return err
		}
	}
	return nil
}

// custom writes the schema of each version of a CustomResourceDefinition.
func custom(resource, folder string) error {
	text, err := os.ReadFile(resource)
	if err != nil {
		return err
	}
	var definition struct {
		Spec struct {
			Group    string
			Names    struct{ Kind string }
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema object }
			}
		}
	}
	if err := yaml.Unmarshal(text, &definition); err != nil {
		return err
	}
	for _, version := range definition.Spec.Versions {
		kind := object{"group": definition.Spec.Group, "version": version.Name, "kind": definition.Spec.Names.Kind}
		// It says no more of metadata than that it is an object.
		schema := strict(version.Schema.OpenAPIV3Schema).(object)
		schema["properties"].(object)["metadata"] = object{"type": "object"}
		if err := write(folder, kind, schema); err != nil {
			return err
		}
	}
	return nil
}

// write names the file as kubeconform looks it up: kind, first part of the group, version.
func write(folder string, kind, schema object) error {
	name := strings.ToLower(fmt.Sprint(kind["kind"]))
	if group := fmt.Sprint(kind["group"]); group != "" {
		name += "-" + strings.Split(group, ".")[0]
	}
	text, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, fmt.Sprintf("%s-%s.json", name, kind["version"])), text, 0o644)
}

// collect adds a definition to `closed`, and all that it refers to.
func collect(name string, all map[string]object, closed object) {
	if _, known := closed[name]; known {
		return
	}
	switch {
	case strings.HasSuffix(name, "api.resource.Quantity"):
		closed[name] = either("string", "number")
	case strings.HasSuffix(name, "intstr.IntOrString"):
		closed[name] = either("string", "integer")
	default:
		closed[name] = strict(all[name])
	}
	references(closed[name], func(reference string) { collect(reference, all, closed) })
}

func references(value interface{}, found func(string)) {
	switch value := value.(type) {
	case object:
		if reference, ok := value["$ref"].(string); ok {
			found(strings.TrimPrefix(reference, "#/definitions/"))
		}
		for _, inner := range value {
			references(inner, found)
		}
	case []interface{}:
		for _, inner := range value {
			references(inner, found)
		}
	}
}

// strict is the schema with no room for unknown fields, without descriptions and the formats that JSON Schema does not know.
func strict(value interface{}) interface{} {
	switch value := value.(type) {
	case []interface{}:
		for place := range value {
			value[place] = strict(value[place])
		}
		return value
	case object:
		if value["format"] == "int-or-string" || value["x-kubernetes-int-or-string"] == true {
			return either("string", "integer")
		}
		result := object{}
		for name, inner := range value {
			_, isText := inner.(string)
			if (name == "description" || name == "format") && isText || strings.HasPrefix(name, "x-kubernetes-") {
				continue
			}
			result[name] = strict(inner)
		}
		_, closes := result["properties"].(object)
		if _, open := result["additionalProperties"]; closes && !open && value["x-kubernetes-preserve-unknown-fields"] != true {
			if kind, typed := result["type"]; !typed || kind == "object" {
				result["additionalProperties"] = false
			}
		}
		return result
	}
	return value
}

func either(types ...string) object {
	var choices []interface{}
	for _, name := range types {
		choices = append(choices, object{"type": name})
	}
	return object{"oneOf": choices}
}
