//go:build !unix

package main

import "errors"

func raiseFiles(int) (int, error) { return 0, errors.ErrUnsupported }
