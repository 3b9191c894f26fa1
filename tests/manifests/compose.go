package main

import (
	"context"
	"path/filepath"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// compose loads a file of Docker Compose as the program does, and prints it with all defaults.
func compose(path string) (string, error) {
	details := types.ConfigDetails{
		WorkingDir:  filepath.Dir(path),
		ConfigFiles: []types.ConfigFile{{Filename: path}},
	}
	project, err := loader.LoadWithContext(context.Background(), details)
	if err != nil {
		return "", err
	}
	text, err := project.MarshalYAML()
	return string(text), err
}
