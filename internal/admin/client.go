package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Client asks a running process. Its methods are safe for concurrent use.
type Client struct {
	// name names the process in messages.
	name      string
	base      string
	http      *http.Client
	authorize func(*http.Request)
}

// NewClient returns a client for the admin server at a URL. authorize adds credentials to a
// request.
func NewClient(base string, transport *http.Transport, authorize func(*http.Request)) *Client {
	transport.ResponseHeaderTimeout = 15 * time.Second
	return &Client{base, base, &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, authorize}
}

// Name names the process in messages.
func (c *Client) Name() string { return c.name }

// Close closes idle connections.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// NoAnswerError means that no process answers.
type NoAnswerError struct {
	URL string
	Err error
}

// Error implements error.
func (e *NoAnswerError) Error() string {
	return fmt.Sprintf("%s does not answer: %s: does semel run work, with this address in --admin or in its configuration?", e.URL, e.Err)
}

// Unwrap returns the reason.
func (e *NoAnswerError) Unwrap() error { return e.Err }

// Get reads the JSON at a path of the server, such as its status. It blocks until the
// answer is there.
func (c *Client) Get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	body, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, 64<<20))
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("%s gives no status: %w: is this the admin server of semel run, of this version?", c.name+path, err)
	}
	return nil
}

// do sends a request and returns the body of the answer.
func (c *Client) do(ctx context.Context, method, path string, body io.Reader) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	if c.authorize != nil {
		c.authorize(request)
	}
	at := c.name + path
	response, err := c.http.Do(request)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
			return nil, cause
		}
		if of, ok := errors.AsType[*url.Error](err); ok {
			err = of.Err
		}
		return nil, &NoAnswerError{at, err}
	}
	if response.StatusCode == http.StatusOK {
		return response.Body, nil
	}
	said, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10)) // for people: less is enough
	_ = response.Body.Close()
	switch response.StatusCode {
	case http.StatusUnauthorized:
		return nil, fmt.Errorf("%s refuses the credentials: name the FILE with its admin.auth, and set the variables that it refers to", at)
	case http.StatusForbidden:
		return nil, fmt.Errorf("%s refuses: %s", at, bytes.TrimSpace(said))
	case http.StatusMisdirectedRequest:
		return nil, fmt.Errorf("%s refuses this host: name the server's address, or set admin.public_url in its configuration to the URL that you use", at)
	}
	return nil, fmt.Errorf("%s answers %s: is this the admin server of semel run, of this version?", at, response.Status)
}

// ask sends a question and calls each with the lines of the answer, until it returns
// false. It returns the error of the other process, or of each.
func (c *Client) ask(ctx context.Context, q *question, each func(*answer) bool) error {
	text, err := json.Marshal(q)
	if err != nil {
		return err
	}
	body, err := c.do(ctx, http.MethodPost, QuestionPath, bytes.NewReader(text))
	if err != nil {
		return err
	}
	defer body.Close()
	for lines := json.NewDecoder(body); ; {
		var a answer
		switch err := lines.Decode(&a); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("%s ended before its answer was whole: run this command again: %w", c.name, err)
		case a.End:
			return nil
		case a.Error != nil:
			return a.Error.plain()
		case !each(&a):
			return nil
		}
	}
}
