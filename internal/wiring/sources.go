package wiring

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/fileio"
	"github.com/semel-dev/semel/broker/httpsrc"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// source opens the source of a pipeline. Every kind is here.
func (b *building) source(ctx context.Context) (pipeline.Source, error) {
	switch spec := b.spec.Source.(type) {
	case *config.FileSource:
		source, err := fileSource(spec, filepath.Join(spec.State, b.spec.Name+".positions"))
		if err != nil {
			return nil, err // not source: a nil *Source in an interface is no nil
		}
		return source, nil
	case *config.KafkaSource:
		return b.kafkaSource(ctx, spec)
	case *config.HTTPSource:
		return httpSource(spec)
	default:
		return nil, fmt.Errorf("this version has no source %s: %w", spec.Kind(), semel.ErrInvalidRequest)
	}
}

// fileSource opens files; with a state of "" it belongs to a session.
func fileSource(spec *config.FileSource, state string) (*fileio.Source, error) {
	return fileio.OpenSource(spec.Paths, &fileio.SourceOptions{
		State: state, Follow: spec.Follow, FromEnd: spec.From == "end", MaxLine: int(spec.MaxLine), KeepBlank: spec.Format == "text",
	})
}

func httpSource(spec *config.HTTPSource) (pipeline.Source, error) {
	opts := &httpsrc.Options{Listen: spec.Listen, Path: spec.Path, MaxBody: spec.MaxBody, Wait: spec.Wait}
	if !spec.Token.IsZero() {
		opts.Authorization = "Bearer " + spec.Token.Reveal()
	}
	var err error
	if opts.TLS, err = serverTLS(spec.TLS); err != nil {
		return nil, err
	}
	source, err := httpsrc.Open(opts)
	if err != nil {
		return nil, err // not source: a nil *Source in an interface is no nil
	}
	return source, nil
}

// serverTLS reads the files that secure a listener; nil if there are none.
func serverTLS(spec *config.ServerTLS) (*tls.Config, error) {
	if spec == nil {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(spec.Certificate, spec.Key)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	c := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if spec.ClientCA != "" {
		if c.ClientCAs, err = roots(spec.ClientCA); err != nil {
			return nil, err
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

// clientTLS reads the files that secure connections to a server; nil if there
// are none.
func clientTLS(spec *config.TLS) (*tls.Config, error) {
	if spec == nil {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: spec.ServerName, InsecureSkipVerify: spec.InsecureSkipVerify}
	var err error
	if spec.CA != "" {
		if c.RootCAs, err = roots(spec.CA); err != nil {
			return nil, err
		}
	}
	if spec.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(spec.Certificate, spec.Key)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

func roots(name string) (*x509.CertPool, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, errors.New("tls: " + name + " holds no certificate")
	}
	return pool, nil
}
