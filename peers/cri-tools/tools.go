//go:build tools

// Package tools keeps critest's own packages in this module's requirements, so that its sums are complete.
package tools

import (
	_ "sigs.k8s.io/cri-tools/pkg/benchmark"
	_ "sigs.k8s.io/cri-tools/pkg/validate"
)
