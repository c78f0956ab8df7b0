"""The HTTP front end: OpenAI's API, and what operators and probes ask. Makes no tokens itself."""
