package main

import (
	"bytes"
	"errors"
	"fmt"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/yaml"
)

// kubernetesVersion is the one that charts are rendered for; the schemas are of the same.
const kubernetesVersion = "v1.35.0"

// render is what `helm template RELEASE CHART --values -` prints, hooks included. The subcharts are those that the chart depends
// on, as `helm dependency build` would fetch them.
func render(release, path string, subcharts []string) (string, error) {
	files, err := rendered(release, path, subcharts)
	if err != nil {
		return "", err
	}
	return joined(files)
}

// notes is what `helm install RELEASE CHART --values -` tells at its end.
func notes(release, path string) (string, error) {
	files, err := rendered(release, path, nil)
	for name, text := range files {
		if strings.HasSuffix(name, "/NOTES.txt") {
			return text, err
		}
	}
	return "", err
}

// rendered are the files of the chart's templates.
func rendered(release, path string, subcharts []string) (map[string]string, error) {
	text, err := input()
	if err != nil {
		return nil, err
	}
	values, err := chartutil.ReadValues(text)
	if err != nil {
		return nil, err
	}
	loaded, err := loader.Load(path)
	if err != nil {
		return nil, err
	}
	for _, subchart := range subcharts {
		dependency, err := loader.Load(subchart)
		if err != nil {
			return nil, err
		}
		loaded.AddDependency(dependency)
	}
	if err := sound(loaded); err != nil {
		return nil, err
	}
	if err := chartutil.ProcessDependencies(loaded, values); err != nil {
		return nil, err
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	version, err := chartutil.ParseKubeVersion(kubernetesVersion)
	if err != nil {
		return nil, err
	}
	capabilities.KubeVersion = *version
	options := chartutil.ReleaseOptions{Name: release, Namespace: "default", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(loaded, values, options, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.Engine{Strict: true}.Render(loaded, all)
}

// sound tells whether helm would install the chart and all that it depends on.
func sound(loaded *chart.Chart) error {
	if err := loaded.Validate(); err != nil {
		return err
	}
	if !chartutil.IsCompatibleRange(loaded.Metadata.KubeVersion, kubernetesVersion) {
		return fmt.Errorf("%s wants Kubernetes %q", loaded.Name(), loaded.Metadata.KubeVersion)
	}
	var missing []error
	for _, wanted := range loaded.Metadata.Dependencies {
		found := false
		for _, dependency := range loaded.Dependencies() {
			found = found || dependency.Name() == wanted.Name && chartutil.IsCompatibleRange(wanted.Version, dependency.Metadata.Version)
		}
		if !found {
			missing = append(missing, fmt.Errorf("%s %s is not there", wanted.Name, wanted.Version))
		}
	}
	return errors.Join(missing...)
}

// joined are the files in the order of their names, each as its documents. Every document has to be YAML.
func joined(rendered map[string]string) (string, error) {
	var names []string
	for name := range rendered {
		if strings.HasSuffix(name, ".yaml") {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	var output bytes.Buffer
	for _, name := range names {
		for _, document := range strings.Split(rendered[name], "\n---\n") {
			if strings.TrimSpace(document) == "" {
				continue
			}
			var any map[string]interface{}
			if err := yaml.UnmarshalStrict([]byte(document), &any); err != nil {
				return "", fmt.Errorf("%s: %w\n%s", name, err, document)
			}
			fmt.Fprintf(&output, "---\n%s\n", strings.TrimSpace(document))
		}
	}
	return output.String(), nil
}
