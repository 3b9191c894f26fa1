// Renders and checks the manifests of deploy/ for tests/process/deploy.rs, by the libraries that helm, kustomize, kubeconform,
// Docker Compose and the admission of Pod Security are made of. Built by tests/run, which has no other use for those programs.
//
//	manifests render RELEASE CHART [SUBCHART…]           a chart with the values of standard input, as `helm template` prints it
//	manifests notes RELEASE CHART                        what `helm install` tells at its end
//	manifests build FOLDER                               a kustomization
//	manifests compose FILE                               a file of Docker Compose
//	manifests values CHART                               what the chart's schema says against each of the values in a JSON array
//	manifests json                                       standard input as a JSON array
//	manifests validate SCHEMAS                           standard input against the schemas; an unknown field is an error
//	manifests restricted                                 the pods of standard input against the level "restricted" of Pod Security
//	manifests schemas SWAGGER DIR CRD…                   makes the schemas from Kubernetes' OpenAPI and CustomResourceDefinitions
//
// Exits with 0 when all is well, with 1 on errors, which it prints to standard error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/yannh/kubeconform/pkg/resource"
	"github.com/yannh/kubeconform/pkg/validator"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

func main() {
	output, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(output)
}

func run(arguments []string) (string, error) {
	if len(arguments) == 0 {
		return "", errors.New("name a command: render, notes, build, compose, values, json, validate, restricted or schemas")
	}
	command, rest := arguments[0], arguments[1:]
	switch {
	case command == "render" && len(rest) >= 2:
		return render(rest[0], rest[1], rest[2:])
	case command == "notes" && len(rest) == 2:
		return notes(rest[0], rest[1])
	case command == "build" && len(rest) == 1:
		return build(rest[0])
	case command == "values" && len(rest) == 1:
		return schemaErrors(rest[0])
	case command == "json" && len(rest) == 0:
		return asJSON()
	case command == "compose" && len(rest) == 1:
		return compose(rest[0])
	case command == "validate" && len(rest) == 1:
		return "", validate(rest[0])
	case command == "restricted" && len(rest) == 0:
		return "", restricted()
	case command == "schemas" && len(rest) >= 3:
		return "", schemas(rest[0], rest[1], rest[2:])
	}
	return "", fmt.Errorf("%s: unknown, or with a wrong number of arguments", command)
}

func build(folder string) (string, error) {
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return "", err
	}
	text, err := resources.AsYaml()
	return string(text), err
}

// manifests are the documents of standard input, without empty ones.
func manifests() ([]resource.Resource, error) {
	found, problems := resource.FromStream(context.Background(), "input", os.Stdin)
	var all []resource.Resource
	for manifest := range found {
		if sig, err := manifest.Signature(); err == nil && sig.Kind == "" {
			continue
		}
		all = append(all, manifest)
	}
	for problem := range problems {
		return nil, problem
	}
	if len(all) == 0 {
		return nil, errors.New("there are no manifests")
	}
	return all, nil
}

func validate(schemas string) error {
	place := schemas + "/{{ .ResourceKind }}{{ .KindSuffix }}.json"
	checker, err := validator.New([]string{place}, validator.Opts{Strict: true, KubernetesVersion: "master"})
	if err != nil {
		return err
	}
	all, err := manifests()
	for _, manifest := range all {
		if result := checker.ValidateResource(manifest); result.Status != validator.Valid {
			sig, _ := manifest.Signature()
			err = errors.Join(err, fmt.Errorf("%s %s: %w", sig.Kind, sig.Name, result.Err))
		}
	}
	return err
}

// restricted evaluates pods, and the templates of pods of every other kind.
func restricted() error {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return err
	}
	all, err := manifests()
	pods := 0
	for _, manifest := range all {
		var workload struct {
			Kind string
			Spec struct{ Template *corev1.PodTemplateSpec }
		}
		// Another kind may have a field of this name that holds something else.
		if yaml.Unmarshal(manifest.Bytes, &workload) != nil || workload.Spec.Template == nil {
			continue
		}
		pods++
		level := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
		template := workload.Spec.Template
		for _, result := range evaluator.EvaluatePod(level, &template.ObjectMeta, &template.Spec) {
			if !result.Allowed {
				err = errors.Join(err, fmt.Errorf("%s: %s: %s", workload.Kind, result.ForbiddenReason, result.ForbiddenDetail))
			}
		}
	}
	if err == nil && pods == 0 {
		return errors.New("there are no pods")
	}
	return err
}

func input() ([]byte, error) {
	return io.ReadAll(os.Stdin)
}
